"""One sequence: what it proposes, how it ends inside a burst, what it teaches the calibration."""

from __future__ import annotations

import numpy as np
import pytest
from jetspec_triton.budget import NO_CAP
from jetspec_triton.calibration import Calibration
from jetspec_triton.candidates import MAX_DEPTH
from jetspec_triton.drafts.base import LATER, NEVER, NOW
from jetspec_triton.lookup import MAX_LENGTH
from jetspec_triton.request import Request
from jetspec_triton.sampling import Sampling, sample
from jetspec_triton.sequence import Sequence

from .byte_level import byte_level

TOKENIZER = byte_level()
DEPTH, WIDTH = 4, 3
PROMPT = [20, 21, 22]
END = TOKENIZER.token_to_id("<|end|>")


def ids(text: str) -> list[int]:
    return [TOKENIZER.token_to_id(c) for c in text]


def sequence(max_tokens: int = 20, sampling=Sampling(), prompt=PROMPT, **fields) -> Sequence:
    return Sequence(Request(prompt, max_tokens, sampling, lambda delta: None, **fields), TOKENIZER)


def head(first: float = 0.6) -> tuple[np.ndarray, np.ndarray]:
    """(ids, log-probabilities) of a head that always names tokens 30, 31, 32."""
    probs = np.tile(np.float32([first, 0.2, 0.1]), (DEPTH, WIDTH + 1, 1))
    return np.tile(np.arange(30, 30 + WIDTH), (DEPTH, 1)), np.log(probs)


def emit(s: Sequence, tokens: list[int], drafted: int = 0):
    return s.take_emitted(tokens, [-float(t) for t in tokens], drafted)


def best_path(candidates) -> list[int]:
    """The likeliest child of the likeliest child and so on."""
    path, node = [], candidates.root
    while children := candidates.children(node):
        path.append(children[0].token)
        node = candidates.follow(node, children[0])
    return path


def lookup_rates(calibration: Calibration) -> list[float]:
    return [calibration.lookup(False, n, view) for n in range(1, MAX_LENGTH + 1) for view in range(4)]


# Proposals


def test_nothing_is_proposed_when_speculation_is_off():
    for off in (sequence(speculate=False), sequence(draft_cap=0)):
        assert not off.drafting and off.draft_mode == NEVER
        off.take_head(*head())
        assert off.propose(Calibration()) is None


def test_without_the_head_the_look_up_drafts_alone():
    s = sequence(prompt=[7, 8, 9, 1, 2, 3, 7, 8, 9])
    candidates = s.propose(Calibration())
    assert best_path(candidates)[:3] == [1, 2, 3] and not candidates.from_head
    emit(s, [1, 2])
    s.take_head(*head())
    assert s.propose(Calibration()).from_head


def test_a_head_that_does_not_pay_is_asked_later():
    s = sequence(200)
    s.seconds, s.plain_seconds = 2.0, 1.0
    modes = []
    for i in range(20):
        s.take_head(*head())
        s.propose(Calibration())
        emit(s, [60 + i])
        modes.append(s.draft_mode)
    assert modes[0] == NOW and modes[-1] == LATER


@pytest.mark.parametrize("max_tokens, depth", [(2, 1), (4, 3), (5, 4), (7, 6), (99, MAX_DEPTH)])
def test_drafts_are_never_deeper_than_what_may_still_be_said(max_tokens, depth):
    """Beyond the head's depth of 4 the look-up goes on alone."""
    s = sequence(max_tokens, prompt=[7, 8, 9, 1, 2, 3, 7, 8, 9])
    s.take_head(*head(0.1))
    assert best_path(s.propose(Calibration())) == ([1, 2, 3, 7, 8, 9] * 6)[:depth]


def test_nothing_is_proposed_for_the_last_token():
    s = sequence(1)
    s.take_head(*head())
    assert s.propose(Calibration()) is None


def test_the_cap_is_the_requests_own():
    for asked, cap in ((None, NO_CAP), (1, 1), (3, 3)):
        s = sequence(draft_cap=asked)
        s.take_head(*head())
        assert s.propose(Calibration()).cap == cap


def test_greedy_keeps_the_heads_own_order_and_probabilities():
    s = sequence()
    s.take_head(*head())
    candidates = s.propose(Calibration())
    assert best_path(candidates) == [30] * DEPTH
    children = candidates.children(candidates.root)
    assert [c.token for c in children] == [30, 31, 32]
    assert [c.probability for c in children] == pytest.approx([0.6, 0.2, 0.1], abs=1e-6)


def test_sampling_ranks_candidates_with_the_noise_that_the_target_will_use():
    """A head as good as the target names the target's token first, at every depth and seed."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=WIDTH).astype(np.float32)
    order = np.argsort(-logits)
    log_probs = np.tile(logits[order] - np.logaddexp.reduce(logits), (DEPTH, WIDTH + 1, 1))
    firsts = set()
    for seed in range(60):
        sampling = Sampling(0.8, seed=seed)
        s = sequence(sampling=sampling)
        s.take_head(np.tile(order, (DEPTH, 1)), log_probs)
        drawn = [sample(logits, len(PROMPT) + d, sampling) for d in range(DEPTH)]
        assert best_path(s.propose(Calibration())) == drawn
        firsts |= set(drawn)
    assert len(firsts) == WIDTH


@pytest.mark.parametrize("temperature", [1e-40, 1e-30, 1e-6, 100.0])
def test_no_temperature_poisons_the_shared_calibration(temperature):
    calibration = Calibration()
    s = sequence(sampling=Sampling(temperature, seed=5))
    s.take_head(*head())
    s.propose(calibration)
    emit(s, [30, 31, 99])
    assert np.isfinite(calibration.head(True, np.random.default_rng(0).random((5, 4, WIDTH)))).all()


def test_a_look_up_is_judged_only_in_the_round_that_used_it():
    """The last round of a request proposes nothing, so it says nothing about look-ups."""
    calibration = Calibration()
    s = sequence(3, prompt=[7, 8, 9, 1, 2, 3, 7, 8, 9])
    s.take_head(*head(0.1))
    start = lookup_rates(calibration)
    assert best_path(s.propose(calibration)) == [1, 2]
    emit(s, [1, 60])
    before = lookup_rates(calibration)
    assert before != start
    s.take_head(*head())
    assert s.propose(calibration) is None
    emit(s, [61])
    assert lookup_rates(calibration) == before


# Ends inside a burst


def test_max_tokens_is_exact_inside_a_burst():
    delta = emit(sequence(3), ids("abcde"))
    assert (delta.text, delta.ids, delta.finish.reason, delta.finish.output_tokens) == ("abc", ids("abc"), "length", 3)
    assert delta.log_probs == [-float(t) for t in ids("abc")]


def test_the_end_token_is_counted_and_not_shown():
    for end in (END, *ids("c")):  # a control token and a plain one
        delta = emit(sequence(end_ids=frozenset([end])), [*ids("ab"), end, *ids("de")])
        assert (delta.text, delta.ids, delta.finish.reason) == ("ab", [*ids("ab"), end], "stop")
        assert len(delta.log_probs) == delta.finish.output_tokens == 3


@pytest.mark.parametrize(
    "max_tokens, burst, text, count, reason",
    [
        (9, "abXYcZ", "ab", 4, "stop"),  # the stop string before the end token
        (9, "abcXYZ", "ab", 3, "stop"),  # the end token before the stop string
        (9, "abXcY", "abX", 4, "stop"),  # the end token inside what might become a stop string: its half is text
        (4, "abXYc", "ab", 4, "stop"),  # both at the same token: stop, not length
        (3, "abXYc", "abX", 3, "length"),  # the limit inside what might become a stop string
        (3, "abcXY", "ab", 3, "stop"),
        (5, "abdef", "abdef", 5, "length"),
    ],
)
def test_the_earliest_end_wins(max_tokens, burst, text, count, reason):
    delta = emit(sequence(max_tokens, stops=("XY",), end_ids=frozenset(ids("c"))), ids(burst))
    assert (delta.text, len(delta.ids), delta.finish.reason) == (text, count, reason)


def test_a_stop_string_across_two_bursts():
    s = sequence(stops=("XYZ",))
    assert emit(s, ids("aX")).text == "a"
    last = emit(s, ids("YZb"))
    assert (last.text, last.ids, last.finish.reason, last.finish.output_tokens) == ("", ids("YZ"), "stop", 4)


def test_an_unfinished_character_comes_out_with_the_limit():
    unfinished = TOKENIZER.encode("€").ids[:-1]
    delta = emit(sequence(1 + len(unfinished)), [*ids("a"), *unfinished])
    assert delta.finish.reason == "length"
    assert delta.text == TOKENIZER.decode([*ids("a"), *unfinished])


@pytest.mark.parametrize("burst, fields", [("abXYZ", {"stops": ("bX",)}), ("abXYZ", {"end_ids": frozenset(ids("b"))})])
def test_counters_agree_with_what_was_emitted(burst, fields):
    """Every emitted token is a bonus token, one a round, or an accepted one; what was cut off counts nowhere."""
    s = sequence(**fields)
    emit(s, ids("q"))
    finish = emit(s, ids(burst), drafted=6).finish
    assert finish.output_tokens == len(s.ids) - len(PROMPT)
    assert finish.accepted_tokens == sum(finish.accepted_by_depth)
    assert finish.rounds == 2 and finish.draft_tokens == 6
    assert finish.rounds + finish.accepted_tokens - finish.output_tokens in (0, 1)  # 1: the bonus token was cut off


def test_a_running_sequence_counts_rounds_and_depths():
    s = sequence()
    for burst in ("a", "bc", "defg"):
        emit(s, ids(burst), drafted=3)
    finish = s.finish("cancelled")
    assert finish[1:7] == (3, 7, 3, 9, 4, (2, 1, 1, *[0] * (MAX_DEPTH - 3)))
    assert 0 < finish.arrival_ns <= finish.first_token_ns <= finish.last_token_ns
