"""What every draft-head engine does: append the committed features to a slot's context, propose after the anchor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from ..checkpoint import DraftConfig


class DraftInput(NamedTuple):
    """`B` rows of one step, as the target left them."""

    slots: np.ndarray  # (B) int32
    lengths: np.ndarray  # (B) int32, context rows before this step; 0 starts a new sequence in the slot
    features: np.ndarray  # (F, n_layers * H); a tensor when the target is on a GPU
    feature_splits: np.ndarray  # (B + 1) int32
    emitted: np.ndarray  # (E) int32; the last token of a row is its anchor
    emitted_splits: np.ndarray  # (B + 1) int32; a row that emitted nothing gets no proposal
    draft: np.ndarray  # (B) int32, 0 for a row that never speculates: its features are dropped


class DraftEngine(ABC):
    """depth: tokens proposed after the anchor, at most what the head was trained for; fewer cost less."""

    config: DraftConfig
    slots: int
    context: int
    depth: int
    width: int  # candidates per depth

    def propose(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32, log-probabilities float32), both `(B, depth, width)`, best first; zeros without a proposal."""
        shape = (len(step.slots), self.depth, self.width)
        ids, log_probs = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        rows = np.flatnonzero(step.draft)
        if len(rows):
            ids[rows], log_probs[rows] = self.propose_rows(step if len(rows) == len(step.slots) else _only(step, rows))
        return ids, log_probs

    @abstractmethod
    def propose_rows(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        """`propose` for rows that all speculate."""


def _only(step: DraftInput, rows: np.ndarray) -> DraftInput:
    """The step without the other rows."""

    def pick(values: np.ndarray, splits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [np.arange(splits[b], splits[b + 1]) for b in rows]
        return values[np.concatenate(parts)], np.concatenate(([0], np.cumsum([len(p) for p in parts]))).astype(np.int32)

    features, feature_splits = pick(step.features, step.feature_splits)
    emitted, emitted_splits = pick(step.emitted, step.emitted_splits)
    return DraftInput(
        step.slots[rows], step.lengths[rows], features, feature_splits, emitted, emitted_splits, step.draft[rows]
    )
