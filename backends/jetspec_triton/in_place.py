"""What a compiled in-place graph takes and gives, and how a ragged step is laid out for it. Knows torch, no engine.

Tensors are those of the in-place ONNX graphs. Slots are batch entries of the caches; a step runs over a window of
neighbouring slots. A slot in the window without a row in the step writes beyond its committed rows, where nobody looks.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .checkpoint import DraftConfig, TargetConfig

_INT = torch.int64


class Binding(NamedTuple):
    """One tensor of a graph. Named dimensions vary: B slots, S nodes or C new context rows, CB context and block rows."""

    dtype: torch.dtype
    shape: tuple[int | str, ...]

    def sized(self, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(sizes[d] if isinstance(d, str) else d for d in self.shape)


class Bindings(NamedTuple):
    """caches: input name -> output name of the tensors that are updated in place; they are in neither of the others."""

    inputs: dict[str, Binding]
    outputs: dict[str, Binding]
    caches: dict[str, str]
    cache: Binding  # the shape of each

    def of_every_tensor(self) -> dict[str, Binding]:
        caches = {name: self.cache for pair in self.caches.items() for name in pair}
        return {**self.inputs, **self.outputs, **caches}


class InPlaceModel(Protocol):
    """A compiled graph with its caches. `caches` is `(L, 2, slots, n_kv, SM, D)` on the device that runs it."""

    caches: Tensor

    def run(self, first_slot: int, feeds: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run over the slots from `first_slot` on, as many as the feeds' batch. Outputs are overwritten by the next run."""


def cache_length(context: int, rows_per_step: int, block: int = 0) -> int:
    """Rows of a slot's cache: the context, and what a step may write beyond it; a multiple of 64."""
    return -(-(context + rows_per_step + block) // 64) * 64


def _caches(config: TargetConfig | DraftConfig, length: int, dtype: torch.dtype) -> tuple[dict[str, str], Binding]:
    names = {f"past_{n}_{i}": f"present_{n}_{i}" for i in range(config.num_layers) for n in ("k", "v")}
    return names, Binding(dtype, ("B", config.num_kv_heads, length, config.head_dim))


def target_bindings(config: TargetConfig, captured: int, length: int, dtype: torch.dtype) -> Bindings:
    """captured: how many layers' outputs the graph hands out. length: rows of a slot's cache."""
    inputs = {
        "input_ids": Binding(_INT, ("B", "S")),
        "position_ids": Binding(_INT, ("B", "S")),
        "tree_mask": Binding(torch.bool, ("B", 1, "S", length)),
        "write_idx": Binding(_INT, ("B",)),
    }
    outputs = {
        "logits": Binding(dtype, ("B", "S", config.vocab_size)),
        "hidden": Binding(dtype, ("B", "S", captured * config.hidden_size)),
    }
    return Bindings(inputs, outputs, *_caches(config, length, dtype))


def draft_bindings(config: DraftConfig, depth: int, width: int, length: int, dtype: torch.dtype) -> Bindings:
    block, features = depth + 1, len(config.target_layer_ids) * config.hidden_size
    inputs = {
        "block_ids": Binding(_INT, ("B", block)),
        "block_positions": Binding(_INT, ("B", block)),
        "ctx_hidden": Binding(dtype, ("B", "C", features)),
        "kv_pos": Binding(_INT, ("B", "CB")),
        "ctx_start": Binding(_INT, ("B",)),
        "mask": Binding(torch.bool, ("B", 1, block, length)),
    }
    outputs = {
        "ids": Binding(torch.int32, ("B", depth, width)),
        "log_probs": Binding(torch.float32, ("B", depth, width + 1, width)),
    }
    return Bindings(inputs, outputs, *_caches(config, length, dtype))


class Window(NamedTuple):
    """The slots and the rows per slot of one run; both come from few values, so that few shapes are ever captured."""

    first: int
    slots: int
    rows: int

    @classmethod
    def cover(cls, slots: np.ndarray, counts: np.ndarray, total: int, most_rows: int) -> Window:
        """The smallest aligned power-of-two window of `total` slots, and of up to `most_rows` rows, that holds the step."""
        size = 1
        while slots.max() >= slots.min() // size * size + size:
            size *= 2
        first = int(slots.min()) // size * size
        rows = 1 << max(int(counts.max()) - 1, 0).bit_length()
        return cls(first, min(size, total - first), min(rows, most_rows))

    def places(self, slots: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Where each ragged row stands in the window's `(slots * rows)` rows, int64 `(R)`."""
        starts = np.cumsum(counts) - counts
        within = np.arange(counts.sum()) - np.repeat(starts, counts)
        return np.repeat((slots.astype(np.int64) - self.first) * self.rows, counts) + within


def tree_mask(own: Tensor, lengths: Tensor, cache_rows: int) -> Tensor:
    """Boolean `(B, 1, S, SM)`: committed rows (below `lengths (B)`), then the step's own as `own (B, S, S)` says."""
    offset = torch.arange(cache_rows, device=own.device) - lengths[:, None]  # (B, SM), of the step's first row
    rows = own.shape[1]
    inside = ((offset >= 0) & (offset < rows))[:, None]
    index = offset.clamp(0, rows - 1)[:, None].expand(-1, rows, -1)
    return ((offset < 0)[:, None] | (inside & own.gather(2, index)))[:, None]


def block_mask(starts: Tensor, counts: Tensor, context_rows: int, block: int, cache_rows: int) -> Tensor:
    """Boolean `(B, 1, block, SM)`: context rows below `starts + counts (B)`, then the block's own, causally.

    The block stands `context_rows` after `starts`: behind the padding of shorter contexts, which nobody sees.
    """
    rows = torch.arange(cache_rows, device=starts.device)
    context = rows < (starts + counts)[:, None]
    offset = rows - (starts + context_rows)[:, None]
    own = (offset[:, None] >= 0) & (offset[:, None] <= torch.arange(block, device=starts.device)[:, None])
    return (context[:, None] | own)[:, None]
