"""A step whose target says a scripted text, so that bursts, ends and failures come exactly where a test wants them."""

from __future__ import annotations

import numpy as np
from jetspec_triton.accept import walk
from jetspec_triton.step import StepBatch, StepLimits, StepResult
from jetspec_triton.tree import depths_of

WIDTH = 2
WRONG = 1  # proposed where the head is told to be wrong; no script says it


class ScriptedStep:
    """The token at position `p` of a sequence is `scripts[first prompt token][p]`.

    right: how many depths the head proposes correctly. Records every batch and checks it as an engine would.
    """

    def __init__(self, scripts: dict[int, list[int]], limits: StepLimits, right: int | None = None):
        self.scripts, self.limits = scripts, limits
        self.right = limits.draft_depth if right is None else right
        self.batches: list[StepBatch] = []
        self._slots: dict[int, tuple[list[int], int]] = {}  # script, committed rows

    def run(self, batch: StepBatch) -> StepResult:
        self.batches.append(batch)
        self._check(batch)
        emitted, splits = [], [0]
        ids = np.full((len(batch.slots), self.limits.draft_depth, WIDTH), WRONG, np.int32)
        for b, slot in enumerate(batch.slots.tolist()):
            tokens, parents = (x[batch.row_splits[b] : batch.row_splits[b + 1]] for x in (batch.tokens, batch.parents))
            forced, length = int(batch.n_forced[b]), int(batch.lengths[b])
            script, held = (self.scripts[int(tokens[0])], 0) if length == 0 else self._slots[slot]
            assert held == length and script[length : length + forced] == tokens[:forced].tolist()
            held += forced
            if batch.emit[b]:
                depths = depths_of(parents, forced)
                accepted, said = walk(tokens, parents, forced - 1, lambda node: script[length + int(depths[node]) + 1])
                held += len(accepted)
                emitted += said
                future = script[held + 1 : held + 1 + self.right]
                ids[b, : len(future), 0] = future
            self._slots[slot] = script, held
            splits.append(len(emitted))
        log_probs = np.log(np.tile(np.float32([0.9, 0.05]), (*ids.shape[:2], WIDTH + 1, 1)))
        emitted = np.array(emitted, np.int32)
        return StepResult(emitted, np.array(splits, np.int32), -emitted.astype(np.float32), ids, log_probs)

    def _check(self, batch: StepBatch) -> None:
        assert len(batch.tokens) <= self.limits.rows_per_step
        assert len(set(batch.slots.tolist())) == len(batch.slots) and batch.slots.max() < self.limits.slots
        assert (np.diff(batch.row_splits) >= batch.n_forced).all() and (batch.n_forced >= 1).all()
        assert (batch.lengths + batch.n_forced <= self.limits.context).all()


class FailingStep:
    """Raises on the given calls (counted from 1), else runs the other step."""

    def __init__(self, step, calls: set[int], error: Exception):
        self.step, self.limits, self.calls, self.error, self.count = step, step.limits, calls, error, 0
        self.failed: list[StepBatch] = []

    def run(self, batch: StepBatch) -> StepResult:
        self.count += 1
        if self.count in self.calls:
            self.failed.append(batch)
            raise self.error
        return self.step.run(batch)
