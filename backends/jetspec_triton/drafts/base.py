"""What every draft-head engine does: append the committed features to a slot's context, propose after the anchor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
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
    draft: np.ndarray  # (B) int32: NEVER, NOW or LATER


NEVER = 0  # the row never speculates: its features are dropped
NOW = 1  # propose if the row emitted something
LATER = 2  # only keep the features for a later proposal


class DraftEngine(ABC):
    """depth: tokens proposed after the anchor, at most what the head was trained for; fewer cost less.

    absorb_rows: features of a slot that may wait for its next proposal. The head's forward then runs only in rounds that
    propose, and takes what has waited along.
    """

    config: DraftConfig
    slots: int
    context: int
    depth: int
    width: int  # candidates per depth
    absorb_rows: int = 128

    def propose(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        """Candidates ids int32 `(B, depth, W)`, best first, and their log-probabilities float32 `(B, depth, W + 1, W)`.

        Entry `[b, d, a, c]` is of candidate `c` at depth `d` below candidate `a` of the depth above; row `W` stands for
        any other token there, and at the first depth all rows are equal. Zeros without a proposal.
        """
        shape = (len(step.slots), self.depth, self.width)
        ids, log_probs = np.zeros(shape, np.int32), np.zeros((*shape[:2], self.width + 1, self.width), np.float32)
        rows = np.flatnonzero(step.draft)
        new = np.diff(step.feature_splits)
        waiting = self._waiting
        for b in rows[step.lengths[rows] == 0]:
            waiting.pop(int(step.slots[b]), None)
        full = [b for b in rows if _count(waiting, step, b) and _count(waiting, step, b) + new[b] > self.absorb_rows]
        if full:
            self.propose_rows(_with_waiting(_only(step, full), waiting, absorb=True))
        propose = (step.draft == NOW) & (np.diff(step.emitted_splits) > 0)
        for b in rows[~propose[rows]]:
            features = step.features[step.feature_splits[b] : step.feature_splits[b + 1]]
            start, parts = waiting.setdefault(int(step.slots[b]), (int(step.lengths[b]), []))
            parts.append(_copy(features))
        rows = np.flatnonzero(propose)
        if len(rows):
            some_ids, some = self.propose_rows(_with_waiting(_only(step, rows), waiting))
            ids[rows], log_probs[rows] = some_ids, some if some.ndim == 4 else some[:, :, None]
        return ids, log_probs

    @cached_property
    def _waiting(self) -> dict[int, tuple[int, list]]:
        """By slot: context rows before what waits, and the features of each step."""
        return {}

    @abstractmethod
    def propose_rows(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        """Absorb the rows' features; propose for those that emitted something. A head that knows no token above may return
        `(B, depth, W)` log-probabilities.
        """


def _count(waiting: dict, step: DraftInput, b: int) -> int:
    """Features of a row's slot that wait."""
    return sum(len(part) for part in waiting.get(int(step.slots[b]), (0, []))[1])


def _copy(features):
    """What comes with a step is gone after it."""
    return features.copy() if isinstance(features, np.ndarray) else features.clone()


def _join(parts: list):
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import torch

    return torch.cat(parts)


def _with_waiting(step: DraftInput, waiting: dict, absorb: bool = False) -> DraftInput:
    """The step with what waited before each row's own features; `absorb`: instead of them, and nothing proposed."""
    lengths, parts, counts = step.lengths.copy(), [], []
    for b, slot in enumerate(step.slots.tolist()):
        start, held = waiting.pop(slot, (int(step.lengths[b]), []))
        own = step.features[step.feature_splits[b] : step.feature_splits[b + 1]]
        held = held if absorb else [*held, own]
        lengths[b] = start
        parts += held
        counts.append(sum(len(part) for part in held))
    splits = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    step = step._replace(lengths=lengths, features=_join(parts), feature_splits=splits)
    if absorb:
        return step._replace(emitted=step.emitted[:0], emitted_splits=np.zeros_like(step.emitted_splits))
    return step


def _only(step: DraftInput, rows) -> DraftInput:
    """The step without the other rows."""
    if len(rows) == len(step.slots):
        return step
    rows = np.asarray(rows)

    def pick(values: np.ndarray, splits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [np.arange(splits[b], splits[b + 1]) for b in rows]
        return values[np.concatenate(parts)], np.concatenate(([0], np.cumsum([len(p) for p in parts]))).astype(np.int32)

    features, feature_splits = pick(step.features, step.feature_splits)
    emitted, emitted_splits = pick(step.emitted, step.emitted_splits)
    return DraftInput(
        step.slots[rows], step.lengths[rows], features, feature_splits, emitted, emitted_splits, step.draft[rows]
    )
