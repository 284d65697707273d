"""What every target engine does with a step: one forward over all nodes, acceptance, commit, features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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
    features: np.ndarray  # (F, n_layers * H) of the rows committed in this step; a tensor when the engine is on a GPU
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
    """Arrays, or tensors of one kind on a device when the engine's own `draws` reads them there."""

    logits: np.ndarray  # (M, V) float32
    log_norm: np.ndarray  # (M) float32, log of the sum of exp(logits)
    features: np.ndarray  # (R, n_layers * H) float32


class Wanted(NamedTuple):
    """The nodes whose logits are wanted."""

    owners: np.ndarray  # (M), row of the step
    positions: np.ndarray  # (M), index in the sequence of the token drawn there


Draws = Callable[[int], "tuple[int, float]"]  # index of a wanted node -> (token, its log-probability)


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

    def draws(self, batch: StepBatch, wanted: Wanted, out: Forward) -> Draws:
        """What the target says after each node whose logits are wanted. Here on the host, and only when asked."""

        def draw(row: int) -> tuple[int, float]:
            b, position, logits = wanted.owners[row], int(wanted.positions[row]), out.logits[row]
            banned = batch.banned[batch.banned_splits[b] : batch.banned_splits[b + 1]]
            if len(banned) and position < batch.banned_until[b]:
                logits = logits.copy()
                logits[banned] = -np.inf
            params = Sampling(
                float(batch.temperature[b]), int(batch.top_k[b]), float(batch.top_p[b]), int(batch.seeds[b])
            )
            token = sample(logits, position, params)
            return token, float(logits[token] - out.log_norm[row])

        return draw

    def extend(self, batch: StepBatch) -> TargetStep:
        """Run one step. Raises `StepFailed` when the batch does not fit what the slots hold or the limits."""
        self._check(batch)
        rows, logit_starts = _rows(batch)
        out = self.forward(rows)
        draws = self.draws(batch, wanted_nodes(batch, rows), out)
        emitted, log_probs, kept_flat, emitted_splits, feature_splits = [], [], [], [0], [0]
        for b in range(len(batch.slots)):
            start, stop = batch.row_splits[b], batch.row_splits[b + 1]
            forced = int(batch.n_forced[b])
            length, slot = int(batch.lengths[b]), int(batch.slots[b])
            accepted: list[int] = []
            if batch.emit[b]:
                draw = _Noted(draws, logit_starts[b] - (forced - 1), log_probs)
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


class _Noted:
    """The target's token after a node of one row, with its log-probability noted in emission order."""

    def __init__(self, draws: Draws, offset: int, log_probs: list[float]):
        self.draws, self.offset, self.log_probs = draws, offset, log_probs

    def __call__(self, node: int) -> int:
        token, log_prob = self.draws(self.offset + node)
        self.log_probs.append(log_prob)
        return token


def wanted_nodes(batch: StepBatch, rows: Rows) -> Wanted:
    owners = np.searchsorted(batch.row_splits, rows.logit_nodes, side="right") - 1
    return Wanted(owners, batch.lengths[owners] + 1 + rows.depths[rows.logit_nodes])


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
