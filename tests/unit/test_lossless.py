"""Speculation never changes the ids: any tree, drafter, budget, batch mix and arrival order, greedy and seeded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.drafts.torch import TorchDraft
from jetspec_triton.request import Request
from jetspec_triton.sampling import Sampling

from .tiny import LIMITS, ScriptedDraft, make_loop, run, tiny_head, tiny_target

PROMPTS = [[5, 9, 33], list(range(2, 60)), [7], [9, 9, 8, 9, 9, 8, 9], [50, 3, 22, 41, 12]]
TOKENS = 24
MODES = [Sampling(), Sampling(0.9, 0, 1.0, 11), Sampling(1.3, 12, 0.85, 2**63 + 5)]


@pytest.fixture(scope="module")
def plain() -> dict[Sampling, list[list[int]]]:
    """Every prompt alone, one token a round."""
    loop = make_loop(ScriptedDraft([], 0.0))
    return {mode: [run(loop, [prompt], TOKENS, mode, speculate=False)[0] for prompt in PROMPTS] for mode in MODES}


def test_plain_text_is_varied(plain):
    assert sum(len(set(ids)) > 5 for texts in plain.values() for ids in texts) >= 12  # of 15
    assert plain[MODES[0]] != plain[MODES[1]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("budget", [0, 1, 4, 17, 64])
def test_same_ids_at_any_budget_and_drafter(plain, mode, accuracy, budget):
    truth = [prompt + ids for prompt, ids in zip(PROMPTS, plain[mode])]
    loop = make_loop(ScriptedDraft(truth, accuracy), max_draft=budget)
    assert run(loop, PROMPTS, TOKENS, mode) == plain[mode]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_same_ids_in_any_mix_and_order(plain, data):
    order = data.draw(st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=9))
    modes = data.draw(st.lists(st.sampled_from(MODES), min_size=len(order), max_size=len(order)))
    caps = data.draw(st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=len(order), max_size=len(order)))
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=len(order), max_size=len(order)))
    truth = [prompt + ids for texts in plain.values() for prompt, ids in zip(PROMPTS, texts)]
    loop = make_loop(ScriptedDraft(truth, data.draw(st.floats(0, 1))), prefill_rows=data.draw(st.integers(1, 40)))
    streams: list[list] = []
    for which, mode, cap, gap in zip(order, modes, caps, gaps):
        streams.append([])
        loop.submit(Request(PROMPTS[which], TOKENS, mode, streams[-1].append, draft_cap=cap))
        for _ in range(gap):
            loop.round()
    while loop.scheduler.waiting or loop.scheduler.running:
        loop.round()
    for which, mode, deltas in zip(order, modes, streams):
        assert [i for d in deltas for i in d.ids] == plain[mode][which]
        assert [d.finish is not None for d in deltas] == [False] * (len(deltas) - 1) + [True]
    loop.scheduler.check_integrity()


def test_perfect_drafts_save_rounds(plain):
    truth = [prompt + ids for prompt, ids in zip(PROMPTS, plain[MODES[0]])]
    loop = make_loop(ScriptedDraft(truth, 1.0))
    deltas: list = []
    loop.submit(Request(PROMPTS[0], TOKENS, MODES[0], deltas.append))
    while deltas == [] or deltas[-1].finish is None:
        loop.round()
    finish = deltas[-1].finish
    assert finish.rounds <= 1 + -(-(TOKENS - 1) // 5)  # 4 drafted and the bonus token a round, after the first
    assert finish.accepted_tokens == sum(finish.accepted_by_depth)
    assert finish.output_tokens == TOKENS


def test_the_real_head_serves_the_same_ids(plain):
    model = tiny_target()
    draft = TorchDraft(tiny_head(), model.embed_tokens.weight, model.lm_head.weight, LIMITS.slots, LIMITS.context)
    for mode in MODES:
        assert run(make_loop(draft), PROMPTS, TOKENS, mode) == plain[mode]


@pytest.mark.parametrize("mode", MODES)
def test_log_probabilities_do_not_depend_on_speculation(plain, mode):
    truth = [PROMPTS[0] + plain[mode][0]]
    values = []
    for accuracy, speculate in ((0.0, False), (1.0, True)):
        deltas: list = []
        loop = make_loop(ScriptedDraft(truth, accuracy))
        loop.submit(Request(PROMPTS[0], TOKENS, mode, deltas.append, speculate=speculate))
        while loop.scheduler.waiting or loop.scheduler.running:
            loop.round()
        values.append([p for d in deltas for p in d.log_probs])
    assert values[0] == pytest.approx(values[1], abs=1e-4)
    assert len(values[0]) == TOKENS and max(values[0]) < 0
