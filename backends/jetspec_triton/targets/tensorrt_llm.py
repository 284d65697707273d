"""The target on TensorRT-LLM: how a ragged step becomes one forward of prompt chunks and equally wide trees.

Everything that touches the `tensorrt_llm` package is in `tensorrt_llm_runtime.py`; see docs/tensorrt_llm.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import DraftConfig, TargetConfig
from ..packed_tree import PackedTrees, pack
from .base import Draws, Forward, Rows, TargetEngine, TargetLimits, TargetStep, Wanted
from .device_draws import draws_on_device

if TYPE_CHECKING:
    from ..step import StepBatch


class EngineStep(NamedTuple):
    """One forward over `S` sequences and `T` tokens, in the engine's order: prompt chunks, then the other rows."""

    slots: list[int]  # (S)
    counts: list[int]  # (S) tokens of each sequence; those that are no chunks all have the same
    cached: list[int]  # (S) committed rows
    chunks: int  # how many sequences are prompt chunks: chains, causal by themselves
    trees: PackedTrees | None  # of the others; None when each of them is a single token
    tokens: np.ndarray  # (T) int32
    positions: np.ndarray  # (T) int32


class EngineOutput(NamedTuple):
    logits: Tensor  # (M, V) float32, of the tokens that were asked for
    features: Tensor  # (T, n_layers * H) in the model's own dtype


class Runtime(Protocol):
    """A loaded model with its paged K/V cache, in which slot `s` has room for `cache_rows` rows of a step."""

    def forward(self, step: EngineStep, logit_tokens: np.ndarray) -> EngineOutput:
        """Run the step, K/V of every token written after its sequence's cached rows. logit_tokens: `(M)`, into `T`."""

    def compact(self, step: EngineStep, moved: list[np.ndarray]) -> None:
        """After `forward(step)`: per sequence, move the rows `cached + 1 + moved` to `cached + 1 ...`, in order."""


def cache_rows(limits: TargetLimits) -> int:
    """Rows a slot needs: what it may commit, and a step beyond it with its padding node."""
    return limits.context + limits.rows_per_step + 1


def lay_out(rows: Rows) -> tuple[EngineStep, np.ndarray]:
    """The engine's step, and where each of the `R` nodes stands among its `T` tokens, int64 `(R)`.

    A chain of several tokens, or one that opens a sequence, is a prompt chunk; the attention of single tokens and
    branching trees wants all of them equally wide, so they are padded to the widest.
    """
    counts = np.diff(rows.splits)
    chain = rows.depths[rows.splits[1:] - 1] == counts - 1
    chunk = chain & ((counts > 1) | (rows.lengths == 0))
    chunks, others = np.flatnonzero(chunk), np.flatnonzero(~chunk)
    spans = [np.arange(rows.splits[b], rows.splits[b + 1]) for b in (*chunks, *others)]
    nodes = np.concatenate(spans)
    in_chunks, width = int(counts[chunks].sum()), 1
    trees, engine_places = None, np.arange(len(nodes))
    if len(others) and counts[others].max() > 1:
        of_trees, splits = nodes[in_chunks:], np.concatenate(([0], np.cumsum(counts[others])))
        trees = pack(rows.parents[of_trees], rows.depths[of_trees], splits)
        width = trees.width
        engine_places[in_chunks:] = in_chunks + trees.places
    places = np.empty(len(nodes), np.int64)
    places[nodes] = engine_places
    order = np.concatenate((chunks, others))
    engine_counts = [*counts[chunks].tolist(), *[width] * len(others)]
    tokens, positions = np.zeros(sum(engine_counts), np.int32), np.repeat(rows.lengths[order], engine_counts)
    tokens[places] = rows.tokens
    positions[places] += rows.depths
    step = EngineStep(
        rows.slots[order].tolist(),
        engine_counts,
        rows.lengths[order].tolist(),
        len(chunks),
        trees,
        tokens,
        positions.astype(np.int32),
    )
    return step, places


class TensorRTLLMTarget(TargetEngine):
    """Logits, features and K/V stay on the GPU; sampled tokens and their log-probabilities come to the host."""

    def __init__(self, config: TargetConfig, limits: TargetLimits, runtime: Runtime):
        super().__init__(config, limits)
        self._runtime = runtime
        self._kept: dict[int, np.ndarray] = {}
        self._step: EngineStep | None = None

    @classmethod
    def open(
        cls, directory: Path, limits: TargetLimits, tensor_parallel: int = 1, device: int = 0
    ) -> TensorRTLLMTarget:
        """`directory` is a Hugging Face checkpoint with the head's configuration in `draft/`. Raises `ConfigError`."""
        from .tensorrt_llm_runtime import TensorRTLLMRuntime

        directory = Path(directory)
        config, layers = TargetConfig.load(directory), DraftConfig.load(directory / "draft").target_layer_ids
        runtime = TensorRTLLMRuntime(
            directory, config, layers, limits.slots, cache_rows(limits), tensor_parallel, device
        )
        return cls(config, limits, runtime)

    @torch.inference_mode()
    def extend(self, batch: StepBatch) -> TargetStep:
        out = super().extend(batch)
        self.settle()
        return out

    def forward(self, rows: Rows) -> Forward:
        self._kept.clear()
        self._step, places = lay_out(rows)
        out = self._runtime.forward(self._step, places[rows.logit_nodes])
        places = torch.from_numpy(places).to(out.features.device)
        return Forward(out.logits, out.logits.logsumexp(-1), out.features[places])

    def draws(self, batch: StepBatch, wanted: Wanted, out: Forward) -> Draws:
        return draws_on_device(batch, wanted, out)

    def commit(self, slot: int, length: int, kept: np.ndarray) -> None:
        """Noted; the rows of all slots move together in `settle`, at the end of the step."""
        self._kept[slot] = kept

    def settle(self) -> None:
        """Move what was committed since the last forward. A row's first node always stays where it is."""
        moved = [self._kept[slot][1:] - 1 for slot in self._step.slots]  # counted from the node after the first
        if any((kept != np.arange(len(kept))).any() for kept in moved):
            chunks = self._step.chunks  # their rows never move, and have no width in common with the others
            self._runtime.compact(self._step, [kept[:0] for kept in moved[:chunks]] + moved[chunks:])
