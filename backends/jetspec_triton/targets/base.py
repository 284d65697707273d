"""What every target engine does with a step: one forward over all nodes, acceptance, commit, features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..accept import walk
from ..checkpoint import TargetConfig
from ..errors import StepFailed
from ..sampling import Sampling, sample
from ..tree import depths_of

if TYPE_CHECKING:
    from ..step import StepBatch


class TargetLimits(NamedTuple):
    slots: int
    context: int
    rows_per_step: int


class TargetStep(NamedTuple):
    emitted: np.ndarray  # (E) int32
    emitted_splits: np.ndarray  # (B + 1) int32
    log_probs: np.ndarray  # (E) float32
    features: np.ndarray  # (F, n_layers * H) float32 of the rows committed in this step
    feature_splits: np.ndarray  # (B + 1) int32


class Rows(NamedTuple):
    """The nodes of a step as an engine's forward reads them."""

    slots: np.ndarray  # (B)
    lengths: np.ndarray  # (B)
    splits: np.ndarray  # (B + 1)
    tokens: np.ndarray  # (R)
    parents: np.ndarray  # (R), index inside the row
    depths: np.ndarray  # (R), inside the row
    logit_nodes: np.ndarray  # (M), flat indices of the nodes whose logits are wanted


class Forward(NamedTuple):
    logits: np.ndarray  # (M, V) float32
    log_norm: np.ndarray  # (M) float32, log of the sum of exp(logits)
    features: np.ndarray  # (R, n_layers * H) float32


class TargetEngine(ABC):
    """Subclasses hold the K/V of `limits.slots` sequences and implement `forward` and `commit`."""

    config: TargetConfig
    limits: TargetLimits

    def __init__(self, config: TargetConfig, limits: TargetLimits):
        self.config, self.limits = config, limits
        self._committed = np.zeros(limits.slots, np.int64)

    @abstractmethod
    def forward(self, rows: Rows) -> Forward:
        """One forward over all nodes; the K/V of all of them is held until `commit`."""

    @abstractmethod
    def commit(self, slot: int, length: int, kept: np.ndarray) -> None:
        """Keep the K/V of the nodes `kept` (indices inside the slot's row, ascending) after the slot's `length` rows."""

    def extend(self, batch: StepBatch) -> TargetStep:
        """Run one step. Raises `StepFailed` when the batch does not fit what the slots hold or the limits."""
        self._check(batch)
        rows, logit_starts = _rows(batch)
        out = self.forward(rows)
        emitted, log_probs, kept_flat, emitted_splits, feature_splits = [], [], [], [0], [0]
        for b in range(len(batch.slots)):
            start, stop = batch.row_splits[b], batch.row_splits[b + 1]
            forced = int(batch.n_forced[b])
            length, slot = int(batch.lengths[b]), int(batch.slots[b])
            accepted: list[int] = []
            if batch.emit[b]:
                params = Sampling(
                    float(batch.temperature[b]), int(batch.top_k[b]), float(batch.top_p[b]), int(batch.seeds[b])
                )
                depths, offset = rows.depths[start:stop], logit_starts[b] - (forced - 1)
                banned = batch.banned[batch.banned_splits[b] : batch.banned_splits[b + 1]]
                draw = _Draw(out, offset, length + 1 + depths, params, banned, int(batch.banned_until[b]), log_probs)
                accepted, tokens = walk(batch.tokens[start:stop], batch.parents[start:stop], forced - 1, draw)
                emitted += tokens
            kept = np.concatenate((np.arange(forced), np.asarray(accepted, np.int64)))
            self.commit(slot, length, kept)
            self._committed[slot] = length + len(kept)
            kept_flat.append(start + kept)
            emitted_splits.append(len(emitted))
            feature_splits.append(feature_splits[-1] + len(kept))
        return TargetStep(
            np.asarray(emitted, np.int32),
            np.asarray(emitted_splits, np.int32),
            np.asarray(log_probs, np.float32),
            out.features[np.concatenate(kept_flat)],
            np.asarray(feature_splits, np.int32),
        )

    def _check(self, batch: StepBatch) -> None:
        nodes, limits = len(batch.tokens), self.limits
        if nodes > limits.rows_per_step:
            raise StepFailed(f"the step has {nodes} nodes, the target takes {limits.rows_per_step}; send fewer")
        if batch.slots.max() >= limits.slots:
            raise StepFailed(f"slot {batch.slots.max()} does not exist, the target has {limits.slots}")
        held = self._committed[batch.slots]
        wrong = (batch.lengths != held) & (batch.lengths != 0)
        if wrong.any():
            b = int(wrong.argmax())
            raise StepFailed(
                f"slot {batch.slots[b]} holds {held[b]} rows, the step expects {batch.lengths[b]}; start the sequence anew"
            )
        need = batch.lengths + np.diff(batch.row_splits)
        if (
            need.max() > limits.context + limits.rows_per_step
            or (batch.lengths + batch.n_forced).max() > limits.context
        ):
            raise StepFailed(f"a row needs {need.max()} cache rows, a slot holds {limits.context}")


class _Draw:
    """The target's token after a node, with its log-probability noted in emission order."""

    def __init__(
        self,
        out: Forward,
        offset: int,
        positions: np.ndarray,
        params: Sampling,
        banned: np.ndarray,
        banned_until: int,
        log_probs: list[float],
    ):
        self.out, self.offset, self.positions, self.params = out, offset, positions, params
        self.banned, self.banned_until, self.log_probs = banned, banned_until, log_probs

    def __call__(self, node: int) -> int:
        row = self.offset + node
        logits = self.out.logits[row]
        position = int(self.positions[node])
        if len(self.banned) and position < self.banned_until:
            logits = logits.copy()
            logits[self.banned] = -np.inf
        token = sample(logits, position, self.params)
        self.log_probs.append(float(logits[token] - self.out.log_norm[row]))
        return token


def _rows(batch: StepBatch) -> tuple[Rows, list[int]]:
    depths, logit_nodes, logit_starts, count = [], [], [], 0
    for b in range(len(batch.slots)):
        start, stop = int(batch.row_splits[b]), int(batch.row_splits[b + 1])
        forced = int(batch.n_forced[b])
        depths.append(depths_of(batch.parents[start:stop], forced))
        logit_starts.append(count)
        if batch.emit[b]:
            wanted = np.arange(start + forced - 1, stop, dtype=np.int32)
            logit_nodes.append(wanted)
            count += len(wanted)
    nodes = np.concatenate(logit_nodes) if logit_nodes else np.zeros(0, np.int32)
    rows = Rows(
        batch.slots, batch.lengths, batch.row_splits, batch.tokens, batch.parents, np.concatenate(depths), nodes
    )
    return rows, logit_starts
