"""The target engines against the PyTorch oracle, through the one operation there is: extend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jetspec_triton.errors import StepFailed
from jetspec_triton.sampling import Sampling
from jetspec_triton.targets.base import Rows, TargetEngine, TargetStep
from jetspec_triton.tree import depths_of

from ..unit.batches import BatchRow, chain_row, step_batch
from ..unit.trees import path_to, rows
from .built import CONTEXT, ROWS, SLOTS, VOCAB

SAMPLINGS = [Sampling(), Sampling(0.8, seed=7), Sampling(1.2, 10, 0.9, 2**64 - 1)]
TEXT = 60  # tokens of the plain text that the trees draw their right guesses from


@pytest.fixture(scope="module", params=["target", "in_place_target"])
def target(request, built):
    return getattr(built, request.param)()


@pytest.fixture(scope="module")
def oracle(built):
    return built.torch_target()


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-3) -> bool:
    """Within `tolerance` of the larger array's scale."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and (a.size == 0 or np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max()))


def assert_same(a: TargetStep, b: TargetStep) -> None:
    assert a.emitted.tolist() == b.emitted.tolist()
    assert a.emitted_splits.tolist() == b.emitted_splits.tolist()
    assert a.feature_splits.tolist() == b.feature_splits.tolist()
    assert close(a.log_probs, b.log_probs)
    assert close(a.features, b.features)


def logits_after(engine: TargetEngine, slot: int, length: int, tokens, parents=None) -> np.ndarray:
    """Logits at all nodes of one row, nothing committed."""
    tokens = np.asarray(tokens, np.int32)
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32) if parents is None else np.asarray(parents, np.int32)
    depths = depths_of(parents, 1)
    one = lambda value: np.array([value], np.int32)  # noqa: E731
    nodes = np.arange(len(tokens), dtype=np.int32)
    split = np.array([0, len(tokens)], np.int32)
    out = engine.forward(Rows(one(slot), one(length), split, tokens, parents, depths, nodes))
    return np.array(out.logits[: len(nodes)])


@pytest.fixture(scope="module")
def plain_texts(oracle) -> dict[tuple[int, Sampling], list[int]]:
    """Prompts of several lengths and what the oracle says after them, one token a round."""
    texts = {}
    for first, length in ((3, 1), (11, 9), (40, 34)):
        for sampling in SAMPLINGS:
            text = [(first * (i + 1)) % VOCAB for i in range(length)]
            row = chain_row(0, 0, text, sampling=sampling)
            while len(text) < TEXT:
                text += oracle.extend(step_batch([row])).emitted.tolist()
                row = chain_row(0, len(text) - 1, text[-1:], sampling=sampling)
            texts[length, sampling] = text
    assert all(len(set(text[length:])) > 8 for (length, _), text in texts.items())
    return texts


@st.composite
def drafted(draw, future: list[int], room: int) -> tuple[list[int], list[int]]:
    """(tokens, parents) below a root: random nodes, and the true continuation to a random depth among them."""
    row = draw(rows(vocab=VOCAB, max_forced=1, max_drafted=min(room, 7)))
    tokens, parents = row.tokens[1:].tolist(), row.parents[1:].tolist()
    at = 0
    for token in future[: draw(st.integers(0, max(0, min(room - len(tokens), 5))))]:
        known = [n for n, (t, p) in enumerate(zip(tokens, parents), 1) if (t, p) == (token, at)]
        if not known:
            tokens.append(token)
            parents.append(at)
            known = [len(tokens)]
        at = known[0]
    return tokens, parents


def test_random_rounds_equal_the_oracle_and_plain_decoding(target, oracle, plain_texts):
    """Several sequences start, are cut into chunks, draft trees and share rounds, in slots that others used before."""
    accepted: list[int] = []

    @settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])  # the engines keep state
    @given(data=st.data())
    def rounds(data):
        running: dict[int, tuple[list[int], int, Sampling, int]] = {}  # slot: text, prompt length, sampling, committed
        for _ in range(data.draw(st.integers(2, 7), label="rounds")):
            batch_rows: list[BatchRow] = []
            order = data.draw(st.permutations(range(SLOTS)), label="order")
            order = order[: data.draw(st.integers(1, SLOTS), label="batch")]
            for others, slot in zip(range(len(order) - 1, -1, -1), order):
                room = ROWS - sum(len(row.tokens) for row in batch_rows) - others
                if slot not in running:
                    prompt, sampling = data.draw(st.sampled_from(sorted(plain_texts)), label="sequence")
                    running[slot] = plain_texts[prompt, sampling], prompt, sampling, 0
                text, prompt, sampling, committed = running[slot]
                if committed < prompt:
                    length = min(data.draw(st.integers(1, 20), label="chunk"), prompt - committed, room)
                    chunk = text[committed : committed + length]
                    row = chain_row(slot, committed, chunk, emit=committed + length == prompt, sampling=sampling)
                else:
                    tokens, parents = data.draw(drafted(text[committed + 1 :], room - 1), label="tree")
                    row = BatchRow(slot, committed, [text[committed], *tokens], [-1, *parents], sampling=sampling)
                batch_rows.append(row)
            batch = step_batch(batch_rows)
            mine, theirs = target.extend(batch), oracle.extend(batch)
            assert_same(mine, theirs)
            for b, row in enumerate(batch_rows):
                emitted = mine.emitted[mine.emitted_splits[b] : mine.emitted_splits[b + 1]].tolist()
                text, prompt, sampling, committed = running[row.slot]
                committed += row.n_forced
                assert emitted == text[committed : committed + len(emitted)]
                accepted.append(max(len(emitted) - 1, 0))
                committed += accepted[-1]
                assert mine.feature_splits[b + 1] - mine.feature_splits[b] == committed - running[row.slot][3]
                running[row.slot] = text, prompt, sampling, committed
                if committed > TEXT - 8:
                    del running[row.slot]

    rounds()
    assert sum(accepted) > 30  # the trees were often right


@settings(
    max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(row=rows(vocab=VOCAB, max_forced=1, max_drafted=20), context=st.sampled_from([0, 1, 31, 32, 40]))
def test_a_tree_is_the_linear_forward_of_each_of_its_paths(target, row, context):
    prompt = [(7 * i + 5) % VOCAB for i in range(context)]
    if context:
        for start in range(0, context, ROWS):
            target.extend(step_batch([chain_row(1, start, prompt[start : start + ROWS], emit=False)]))
    tree = logits_after(target, 1, context, row.tokens, row.parents)
    for leaf in set(range(len(row.tokens))) - set(row.parents.tolist()):
        path = path_to(row.parents, leaf)
        assert close(tree[path], logits_after(target, 1, context, row.tokens[path]))


@pytest.mark.parametrize("prompt", [1, 30, 32, 33])
def test_what_an_accepted_branch_leaves_equals_a_fresh_prefill(target, oracle, plain_texts, prompt):
    """The right nodes stand last in the tree, so accepting them moves their rows, also across a block's border."""
    text = plain_texts[1, SAMPLINGS[0]]
    for engine in (target, oracle):
        engine.extend(step_batch([chain_row(2, 0, text[:prompt], emit=False)]))
        wrong = [(t + 1) % VOCAB for t in text[prompt + 1 : prompt + 4]]
        right = text[prompt + 1 : prompt + 5]
        tree = BatchRow(2, prompt, [text[prompt], *wrong, *right], [-1, 0, 0, 2, 0, 4, 5, 6])
        step = engine.extend(step_batch([tree]))
        assert step.emitted.tolist() == text[prompt + 1 : prompt + 6]
        committed = prompt + 5
        assert step.feature_splits.tolist() == [0, 5]
        fresh = engine.extend(step_batch([chain_row(3, 0, text[:committed], emit=False)]))
        assert close(step.features, fresh.features[prompt:committed])
        nodes = text[committed : committed + 3]
        assert close(logits_after(engine, 2, committed, nodes), logits_after(engine, 3, committed, nodes))


def test_a_slot_is_reused_without_a_trace(target, plain_texts):
    first, second = plain_texts[34, SAMPLINGS[0]], plain_texts[9, SAMPLINGS[1]]
    clean = target.extend(step_batch([chain_row(3, 0, second[:20])]))
    target.extend(step_batch([chain_row(0, 0, first[:36], emit=False)]))
    again = target.extend(step_batch([chain_row(0, 0, second[:20])]))
    assert_same(again, clean)
    assert again.emitted[0] == clean.emitted[0]


def test_rows_in_one_batch_equal_each_alone(target, plain_texts):
    texts = [plain_texts[length, sampling] for length, sampling in zip((1, 9, 34), SAMPLINGS)]
    batch_rows = [
        BatchRow(0, 12, [texts[0][12], 5, texts[0][13], 9], [-1, 0, 0, 1], sampling=SAMPLINGS[0]),
        chain_row(1, 7, texts[1][7:16], sampling=SAMPLINGS[1]),
        chain_row(3, 0, texts[2][:11], emit=False),
    ]

    def prepare():
        target.extend(
            step_batch([chain_row(0, 0, texts[0][:12], emit=False), chain_row(1, 0, texts[1][:7], emit=False)])
        )

    prepare()
    together = target.extend(step_batch(batch_rows))
    prepare()
    alone = [target.extend(step_batch([row])) for row in batch_rows]
    assert together.emitted.tolist() == [i for step in alone for i in step.emitted.tolist()]
    assert np.diff(together.emitted_splits).tolist() == [len(step.emitted) for step in alone] == [2, 1, 0]
    assert close(together.log_probs, np.concatenate([step.log_probs for step in alone]))
    assert close(together.features, np.concatenate([step.features for step in alone]))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, ROWS])
def test_every_row_count_gives_the_same_numbers(target, oracle, count):
    """Small counts run in graphs of their own, padded up to the next one."""
    tokens = [(5 * i + 2) % VOCAB for i in range(count)]
    for engine in (target, oracle):
        engine.extend(step_batch([chain_row(slot, 0, [9, 8, 7 + slot, 6], emit=False) for slot in range(SLOTS)]))
    for slot in range(SLOTS):
        assert close(logits_after(target, slot, 4, tokens), logits_after(oracle, slot, 4, tokens))
    for slot in range(SLOTS):  # padding touched no slot
        assert close(logits_after(target, slot, 4, [33]), logits_after(oracle, slot, 4, [33]))


def test_a_full_context_is_served_and_no_more(target, oracle):
    """Drafts beyond the end of the context stay in the slot's own rows; the neighbour does not notice."""
    slot, tokens = 1, [(3 * i + 1) % VOCAB for i in range(CONTEXT)]
    neighbour = step_batch([chain_row(slot + 1, 0, [5, 6, 7], emit=False)])
    assert_same(target.extend(neighbour), oracle.extend(neighbour))
    for start in range(0, CONTEXT - 1, ROWS):
        chunk = step_batch([chain_row(slot, start, tokens[start : min(start + ROWS, CONTEXT - 1)], emit=False)])
        assert_same(target.extend(chunk), oracle.extend(chunk))
    drafts = logits_after(target, slot, CONTEXT - 1, tokens[-1:] + [1] * (ROWS - 1))
    assert close(drafts, logits_after(oracle, slot, CONTEXT - 1, tokens[-1:] + [1] * (ROWS - 1)))
    last = step_batch([chain_row(slot, CONTEXT - 1, tokens[-1:])])
    assert_same(target.extend(last), oracle.extend(last))
    with pytest.raises(StepFailed, match=str(CONTEXT)):
        target.extend(step_batch([chain_row(slot, CONTEXT, [1])]))
    assert close(logits_after(target, slot + 1, 3, [33]), logits_after(oracle, slot + 1, 3, [33]))


@pytest.mark.parametrize(
    "row, words",
    [
        (chain_row(1, 4, [1]), ["slot 1", "3 rows", "4"]),
        (chain_row(1, 2, [1]), ["slot 1", "3 rows", "2"]),
        (chain_row(SLOTS, 0, [1]), [f"slot {SLOTS}", str(SLOTS)]),
        (chain_row(1, 0, [1] * (ROWS + 1)), [str(ROWS + 2), str(ROWS)]),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_changes_nothing(target, oracle, row, words):
    for engine in (target, oracle):
        engine.extend(step_batch([chain_row(1, 0, [9, 8, 7], emit=False)]))
        with pytest.raises(StepFailed) as refused:
            engine.extend(step_batch([chain_row(0, 0, [2]), row]))
        assert [word for word in words if word not in str(refused.value)] == []
    again = step_batch([chain_row(1, 3, [6])])
    assert_same(target.extend(again), oracle.extend(again))
