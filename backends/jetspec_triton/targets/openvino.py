"""The target on OpenVINO: paged K/V in host memory, written in place; committing moves only accepted branch rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..checkpoint import TargetConfig
from ..openvino_runtime import BLOCK, PagedBatch, PagedModel
from .base import Forward, Rows, TargetEngine, TargetLimits

STATIC_ROWS = (1, 2, 4)  # row counts with a graph of their own: up to here a row costs next to nothing


class OpenVINOTarget(TargetEngine):
    """`directory` holds `config.json` and `target.onnx`. Slot `s` owns a fixed run of cache blocks."""

    def __init__(self, directory: Path, limits: TargetLimits, threads: int):
        config = TargetConfig.load(directory)
        super().__init__(config, limits)
        self._blocks_per_slot = -(-(limits.context + limits.rows_per_step) // BLOCK)
        blocks = limits.slots * self._blocks_per_slot + 1
        self._scratch = blocks - 1  # padding rows write here
        shape = (config.num_layers, 2, blocks, config.num_kv_heads, BLOCK, config.head_dim)
        self._caches = np.zeros(shape, np.float32)
        static = {n: {"input_ids": [n], "positions": [n], "logit_rows": [n]} for n in STATIC_ROWS}
        self._model = PagedModel(Path(directory) / "target.onnx", self._caches, threads, static)

    def forward(self, rows: Rows) -> Forward:
        batch = PagedBatch()
        for b, slot in enumerate(rows.slots):
            start, stop = rows.splits[b], rows.splits[b + 1]
            span = slice(start, stop)
            batch.add(
                slot * self._blocks_per_slot, rows.lengths[b], rows.parents[span], rows.depths[span], stop - start
            )
        nodes = len(rows.tokens)
        bucket = next((n for n in self._model.static_rows if n >= nodes), 0)
        padding = max(bucket - nodes, 0)
        if padding:
            batch.add(self._scratch, 0, None, None, padding)
        logit_rows = bucket or max(len(rows.logit_nodes), 1)
        positions = np.repeat(rows.lengths, np.diff(rows.splits)) + rows.depths
        out = self._model.run(
            {
                "input_ids": _padded(rows.tokens, nodes + padding),
                "positions": _padded(positions, nodes + padding),
                "logit_rows": _padded(rows.logit_nodes, logit_rows),
                **batch.feeds(),
            },
            bucket,
        )
        return Forward(out["logits"], out["log_norm"], out["features"])

    def commit(self, slot: int, length: int, kept: np.ndarray) -> None:
        target = np.arange(len(kept))
        moved = kept != target
        if not moved.any():
            return
        first = slot * self._blocks_per_slot
        source, target = length + kept[moved], length + target[moved]
        rows = self._caches[:, :, first + source // BLOCK, :, source % BLOCK]
        self._caches[:, :, first + target // BLOCK, :, target % BLOCK] = rows


def _padded(array: np.ndarray, length: int) -> np.ndarray:
    out = np.zeros(length, np.int32)
    out[: len(array)] = array
    return out
