"""Features wait for the next proposal: whatever is asked when, the head ends up with the same context."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.drafts.base import LATER, NEVER, NOW, DraftEngine, DraftInput

SLOTS, WIDTH, DEPTH = 3, 2, 1


class Recording(DraftEngine):
    """Keeps every slot's absorbed rows as a head's cache would, and proposes their number."""

    slots, context, depth, width = SLOTS, 1000, DEPTH, WIDTH

    def __init__(self, absorb_rows: int):
        self.absorb_rows, self.held, self.calls = absorb_rows, [[] for _ in range(SLOTS)], 0

    def propose_rows(self, step):
        self.calls += 1
        ids = np.zeros((len(step.slots), DEPTH, WIDTH), np.int32)
        for b, slot in enumerate(step.slots):
            new = step.features[step.feature_splits[b] : step.feature_splits[b + 1], 0].tolist()
            assert len(self.held[slot]) >= step.lengths[b]
            assert len(new) <= max(self.absorb_rows, 8)
            self.held[slot] = self.held[slot][: step.lengths[b]] + new
            if step.emitted_splits[b + 1] > step.emitted_splits[b]:
                ids[b] = len(self.held[slot])
        return ids, np.full(ids.shape, -1.0, np.float32)


def step_of(rows) -> DraftInput:
    """rows: (slot, length, features, emits, mode)."""
    splits = lambda counts: np.concatenate(([0], np.cumsum(counts))).astype(np.int32)  # noqa: E731
    return DraftInput(
        np.array([r[0] for r in rows], np.int32),
        np.array([r[1] for r in rows], np.int32),
        np.concatenate([np.array(r[2], np.float32).reshape(-1, 1) for r in rows]),
        splits([len(r[2]) for r in rows]),
        np.zeros(sum(r[3] for r in rows), np.int32),
        splits([int(r[3]) for r in rows]),
        np.array([r[4] for r in rows], np.int32),
    )


@settings(max_examples=150, deadline=None)
@given(data=st.data(), absorb_rows=st.sampled_from([1, 4, 9, 128]))
def test_a_proposal_always_stands_on_the_whole_context(data, absorb_rows):
    engine, truth, never = Recording(absorb_rows), [[] for _ in range(SLOTS)], [False] * SLOTS
    stamp = 0.0
    for _ in range(data.draw(st.integers(1, 14))):
        rows, expected = [], []
        for slot in data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True)):
            if not truth[slot] or data.draw(st.integers(0, 6)) == 0:  # a new sequence in the slot
                truth[slot], never[slot] = [], data.draw(st.booleans())
            new = [stamp + i for i in range(data.draw(st.integers(1, 8)))]
            stamp += len(new)
            emits = data.draw(st.booleans())
            mode = NEVER if never[slot] else data.draw(st.sampled_from([NOW, LATER]))
            rows.append((slot, len(truth[slot]), new, emits, mode))
            truth[slot] = truth[slot] + new
            expected.append(len(truth[slot]) if emits and mode == NOW else 0)
        step = step_of(rows)
        ids, log_probs = engine.propose(step)
        step.features[:] = -1  # what came with a step is gone after it
        assert ids[:, 0, 0].tolist() == expected
        for (slot, *_), count in zip(rows, expected):
            if count:
                assert engine.held[slot] == truth[slot]
    assert log_probs.shape == (len(rows), DEPTH, WIDTH + 1, WIDTH)


@pytest.mark.parametrize("mode, calls", [(LATER, 0), (NEVER, 0), (NOW, 20)])
def test_the_head_runs_only_where_it_proposes(mode, calls):
    engine = Recording(128)
    for i in range(20):
        engine.propose(step_of([(0, i, [float(i)], True, mode)]))
    assert engine.calls == calls


def test_a_long_wait_is_absorbed_in_between():
    engine = Recording(8)
    for i in range(20):
        engine.propose(step_of([(0, i, [float(i)], True, LATER)]))
    assert engine.calls == 2 and engine.held[0] == [float(i) for i in range(16)]
