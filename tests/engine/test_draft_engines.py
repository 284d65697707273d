"""The draft-head engines against the PyTorch oracle over rounds that share one batch."""

from __future__ import annotations

import numpy as np
import pytest
from jetspec_triton.drafts.base import DraftInput
from jetspec_triton.errors import ConfigError
from jetspec_triton.step import LocalStep

from .built import CONTEXT, LAYERS, ROWS, SLOTS, VOCAB, Built

HIDDEN = 64


@pytest.fixture(scope="module", params=["draft", "in_place_draft"])
def draft(request, built):
    return getattr(built, request.param)()


@pytest.fixture(scope="module")
def oracle(built):
    return built.torch_draft()


class Row:
    """One row of a round: how many rows its slot holds, how many are new, what it emitted, whether it speculates."""

    def __init__(self, slot: int, length: int, new: int, emitted: list[int], draft: bool = True):
        self.slot, self.length, self.new, self.emitted, self.draft = slot, length, new, emitted, draft


def features_of(row: Row) -> np.ndarray:
    """Random, the same for the same slot and rows wherever they stand in a batch."""
    rng = np.random.default_rng([row.slot, row.length, row.new])
    return rng.normal(size=(row.new, len(LAYERS) * HIDDEN)).astype(np.float32) * 3


def inputs(rows: list[Row]) -> DraftInput:
    def splits(counts) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)

    return DraftInput(
        slots=np.array([r.slot for r in rows], np.int32),
        lengths=np.array([r.length for r in rows], np.int32),
        features=np.concatenate([features_of(r) for r in rows]),
        feature_splits=splits([r.new for r in rows]),
        emitted=np.array([t for r in rows for t in r.emitted], np.int32),
        emitted_splits=splits([len(r.emitted) for r in rows]),
        draft=np.array([r.draft for r in rows], np.int32),
    )


def assert_same(mine, theirs) -> None:
    (ids, log_probs), (expected_ids, expected) = mine, theirs
    assert ids.shape == expected_ids.shape and ids.dtype == np.int32 and log_probs.dtype == np.float32
    assert log_probs.shape == expected.shape == (*ids.shape[:2], ids.shape[2] + 1, ids.shape[2])
    marginal = expected[:, :, -1]
    assert np.allclose(log_probs[:, :, -1], marginal, atol=1e-3)
    for b, d in np.ndindex(ids.shape[:2]):
        if d == 0 or np.array_equal(ids[b, d - 1 : d + 1], expected_ids[b, d - 1 : d + 1]):
            assert np.allclose(log_probs[b, d], expected[b, d], atol=2e-3)
    near = np.zeros(ids.shape, bool)  # candidates as good as their neighbour may swap
    tie = np.abs(np.diff(marginal, axis=-1)) < 1e-3
    near[..., 1:] |= tie
    near[..., :-1] |= tie
    near[..., -1] = True  # its neighbour is not shown
    assert np.array_equal(ids[~near], expected_ids[~near])


ROUNDS = [
    [Row(0, 0, 5, [7])],
    [Row(0, 5, 1, [3]), Row(1, 0, 20, [])],
    [Row(1, 20, 20, []), Row(2, 0, 20, [])],  # nobody proposes
    [Row(2, 20, 12, [])],
    [Row(2, 32, 1, [50]), Row(0, 6, 4, [1, 2, 3, 9]), Row(1, 40, 3, [30])],
    [Row(1, 43, 5, [4, 5, 6, 7, 8]), Row(3, 0, 1, [11]), Row(2, 33, 2, [12, 13])],
    [Row(0, 0, 33, [21]), Row(3, 1, 1, [22])],  # slot 0 starts a new sequence
    [Row(3, 2, 1, [23]), Row(2, 35, 1, [24]), Row(1, 48, 1, [25]), Row(0, 33, 1, [26])],
    [Row(3, 3, 30, []), Row(2, 0, 31, [27])],
    [Row(2, 31, 1, [28])],
    [Row(2, 32, 1, [29])],
    [Row(0, 34, 2, [30, 31], draft=False), Row(2, 33, 2, [32, 33]), Row(1, 0, 9, [], draft=False)],
    [Row(1, 9, 1, [34], draft=False), Row(0, 36, 1, [35], draft=False)],  # nobody speculates
    [Row(1, 0, 3, [36]), Row(2, 35, 1, [37])],
]


def test_every_round_equals_the_oracle(draft, oracle):
    for number, rows in enumerate(ROUNDS):
        step = inputs(rows)
        ids, log_probs = draft.propose(step)
        assert_same((ids, log_probs), oracle.propose(step))
        for b, row in enumerate(rows):
            if row.emitted and row.draft:
                assert (np.diff(log_probs[b, :, -1], axis=-1) <= 0).all() and (log_probs[b] < 0).all(), number
                assert (log_probs[b, 0] == log_probs[b, 0, -1]).all(), number
                below = np.abs(log_probs[b, 1:, :-1] - log_probs[b, 1:, -1:]).max()
                assert below > 0.1, number  # what stands above matters
                assert all(len(set(depth)) == draft.width for depth in ids[b].tolist()), number
            else:
                assert not ids[b].any() and not log_probs[b].any()


def test_depths_differ_and_the_anchor_matters(draft):
    """A head that ignored its anchor, its context or its depth would pass a comparison with an equally wrong oracle."""
    draft.propose(inputs([Row(0, 0, 9, [])]))
    first = draft.propose(inputs([Row(0, 9, 1, [7])]))[1]
    other_anchor = draft.propose(inputs([Row(0, 9, 1, [8])]))[1]
    draft.propose(inputs([Row(0, 0, 9, []), Row(1, 0, 9, [])]))
    other_context = draft.propose(inputs([Row(1, 9, 1, [7])]))[1]
    again = draft.propose(inputs([Row(0, 9, 1, [7])]))[1]
    assert np.allclose(first, again, atol=1e-5)
    assert not np.allclose(first, other_anchor, atol=1e-2) and not np.allclose(first, other_context, atol=1e-2)
    assert not np.allclose(first[0, 0], first[0, 1], atol=1e-2)


def test_a_row_does_not_depend_on_its_batch_or_on_the_chunks_of_its_prompt(draft):
    rows = [Row(0, 0, 3, [5]), Row(1, 0, 36, [6]), Row(2, 0, 32, [7])]
    together = draft.propose(inputs(rows))
    for b, row in enumerate(rows):
        alone = draft.propose(inputs([row]))
        assert np.allclose(together[1][b], alone[1][0], atol=1e-4)
        whole = inputs([row])
        for start in range(0, row.new, 5):
            stop = min(start + 5, row.new)
            last = stop == row.new
            chunk = whole._replace(
                lengths=np.array([start], np.int32),
                features=whole.features[start:stop],
                feature_splits=np.array([0, stop - start], np.int32),
                emitted=whole.emitted if last else whole.emitted[:0],
                emitted_splits=whole.emitted_splits if last else np.zeros(2, np.int32),
            )
            chunked = draft.propose(chunk)
        assert np.allclose(chunked[1], alone[1], atol=1e-4)


def test_rows_that_never_speculate_are_as_good_as_absent(draft, oracle):
    """The selection is shared code, so each engine is compared with a batch that lacks those rows."""
    rows = [
        Row(0, 0, 6, [40, 41], draft=False),
        Row(1, 7, 2, [42, 43]),
        Row(2, 0, 3, [44], draft=False),
        Row(3, 4, 1, [45]),
    ]
    for engine in (draft, oracle):
        engine.propose(inputs([Row(1, 0, 7, []), Row(3, 0, 4, [])]))
        mixed = engine.propose(inputs(rows))
        alone = engine.propose(inputs([row for row in rows if row.draft]))
        assert np.array_equal(mixed[0][[1, 3]], alone[0]) and np.allclose(mixed[1][[1, 3]], alone[1], atol=1e-5)
        assert not mixed[0][[0, 2]].any() and not mixed[1][[0, 2]].any()


def test_a_full_context_in_the_last_slot_still_proposes(draft, oracle):
    """The block of a slot that is full must not reach into another slot's rows."""
    for engine in (draft, oracle):
        for start in range(0, CONTEXT - 1, ROWS):
            count = min(ROWS, CONTEXT - 1 - start)
            engine.propose(inputs([Row(s, start, count, []) for s in range(SLOTS)]))
    for slots in ([2], [3], [0, 1], [3, 2, 1, 0]):
        step = inputs([Row(s, CONTEXT - 1, 1, [s + 60]) for s in slots])
        assert_same(draft.propose(step), oracle.propose(step))


def test_more_rows_than_a_step_takes_may_come_before_a_proposal(draft, oracle):
    """Features of rounds that ask for none (2: later) may wait; the engine takes them in steps that it can hold."""
    for engine in (draft, oracle):
        for length in (0, 30, 60):
            engine.propose(inputs([Row(0, length, 30, [], draft=2), Row(2, length, 20 + length // 3, [9], draft=2)]))
    # slot 2 starts anew: what its shorter rounds left must not remain
    step = inputs([Row(0, 90, 2, [3]), Row(2, 0, 7, [4])])
    assert_same(draft.propose(step), oracle.propose(step))


def test_only_the_draft_vocabulary_is_proposed(built, draft):
    head = built.torch_draft()._head
    seen = {int(i) for anchor in range(20) for i in draft.propose(inputs([Row(0, 0, 2, [anchor])]))[0].ravel()}
    assert seen <= set(head.draft_vocab.tolist())
    assert len(seen) > 20 and max(seen) < VOCAB


def test_a_shallower_build_proposes_the_first_depths(tmp_path):
    """The head is causal over its block, so leaving its last rows out changes nothing above them."""
    built = Built(tmp_path, tied=True, draft_vocab=40, draft_depth=2)
    shallow, oracle = built.draft(), built.torch_draft()
    assert shallow.depth == 2 < oracle.depth
    for rows in ROUNDS[:7]:
        ids, log_probs = oracle.propose(inputs(rows))
        assert_same(shallow.propose(inputs(rows)), (ids[:, :2], log_probs[:, :2]))
    step = LocalStep(built.target(), shallow)
    assert step.limits.draft_depth == 2


@pytest.mark.parametrize("engine", ["draft", "in_place_draft"])
def test_a_head_without_a_correction_says_the_same_below_every_candidate(tmp_path, engine):
    """As published heads are."""
    built = Built(tmp_path, tied=True, draft_vocab=40, parent=0)
    mine, oracle = getattr(built, engine)(), built.torch_draft()
    for rows in ROUNDS[:7]:
        ids, log_probs = mine.propose(inputs(rows))
        assert_same((ids, log_probs), oracle.propose(inputs(rows)))
        assert (log_probs == log_probs[:, :, -1:]).all()
        assert log_probs.any() == any(row.emitted for row in rows)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_shallower_gpu_graph_proposes_the_first_depths(built, depth):
    shallow, oracle = built.in_place_draft(depth), built.torch_draft()
    for rows in ROUNDS[:7]:
        ids, log_probs = oracle.propose(inputs(rows))
        assert_same(shallow.propose(inputs(rows)), (ids[:, :depth], log_probs[:, :depth]))


def test_a_depth_beyond_the_heads_training_is_refused_at_build(tmp_path):
    with pytest.raises(ConfigError, match="5.*4"):
        Built(tmp_path, tied=True, draft_vocab=0, draft_depth=5)
