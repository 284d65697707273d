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
    features: np.ndarray  # (F, n_layers * H) float32
    feature_splits: np.ndarray  # (B + 1) int32
    emitted: np.ndarray  # (E) int32; the last token of a row is its anchor
    emitted_splits: np.ndarray  # (B + 1) int32; a row that emitted nothing gets no proposal


class DraftEngine(ABC):
    config: DraftConfig
    slots: int
    context: int
    width: int  # candidates per depth

    @abstractmethod
    def propose(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32, log-probabilities float32), both `(B, depth, width)`, best first."""
