"""One round of the engines: the target extends every row, the draft head proposes what may follow.

`LocalStep` runs both in this process; the Triton backend's `EnsembleStep` sends the same arrays through the
`jetspec_step` ensemble. Both give the same result.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from .drafts.base import DraftEngine, DraftInput
from .targets.base import TargetEngine


class StepBatch(NamedTuple):
    """`B` rows, ragged over `R` nodes. A row is a slot plus a tree whose first `n_forced` nodes are a committed chain."""

    slots: np.ndarray  # (B) int32
    lengths: np.ndarray  # (B) int32, committed rows before this step; 0 starts a new sequence in the slot
    row_splits: np.ndarray  # (B + 1) int32
    tokens: np.ndarray  # (R) int32
    parents: np.ndarray  # (R) int32, index inside the row, -1 for its first node
    n_forced: np.ndarray  # (B) int32
    emit: np.ndarray  # (B) int32, 0 for a prompt chunk that is not the last: nothing is sampled
    temperature: np.ndarray  # (B) float32
    top_k: np.ndarray  # (B) int32
    top_p: np.ndarray  # (B) float32
    seeds: np.ndarray  # (B) uint64
    draft: np.ndarray  # (B) int32, what is asked of the head: NEVER, NOW or LATER of `drafts.base`
    banned: np.ndarray  # (K) int32, ids that may not be drawn yet (end tokens before min_tokens), row after row
    banned_splits: np.ndarray  # (B + 1) int32
    banned_until: np.ndarray  # (B) int32, position (index in the sequence) from which they may


class StepLimits(NamedTuple):
    """What the engines behind a step can hold; the loop refuses what goes beyond."""

    slots: int
    context: int  # rows a slot can commit
    rows_per_step: int  # nodes of all rows in one step
    draft_depth: int


class StepResult(NamedTuple):
    emitted: np.ndarray  # (E) int32: accepted tokens, then the bonus token, row after row
    emitted_splits: np.ndarray  # (B + 1) int32
    log_probs: np.ndarray  # (E) float32, the target's, before temperature
    draft_ids: np.ndarray  # (B, depth, W) int32, candidates after the bonus token
    draft_log_probs: np.ndarray  # (B, depth, W + 1, W) float32, see `drafts.base.DraftEngine.propose`


class Step(Protocol):
    limits: StepLimits

    def run(self, batch: StepBatch) -> StepResult:
        """Run one round. Raises `StepFailed`; the rows of a failed round must be dropped."""


class LocalStep:
    """Target and draft head in this process."""

    def __init__(self, target: TargetEngine, draft: DraftEngine):
        draft.config.check_target(target.config)
        self.target, self.draft = target, draft
        self.limits = StepLimits(
            min(target.limits.slots, draft.slots),
            min(target.limits.context, draft.context),
            target.limits.rows_per_step,
            draft.depth,
        )

    def run(self, batch: StepBatch) -> StepResult:
        out = self.target.extend(batch)
        ids, log_probs = self.draft.propose(
            DraftInput(
                batch.slots,
                batch.lengths,
                out.features,
                out.feature_splits,
                out.emitted,
                out.emitted_splits,
                batch.draft,
            )
        )
        return StepResult(out.emitted, out.emitted_splits, out.log_probs, ids, log_probs)
