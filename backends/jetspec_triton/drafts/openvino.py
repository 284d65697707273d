"""The draft head on OpenVINO, with the same paged runtime as the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..checkpoint import DraftConfig
from ..errors import ConfigError
from ..openvino_runtime import BLOCK, PagedBatch, PagedModel
from .base import DraftEngine, DraftInput


class OpenVINODraft(DraftEngine):
    """`directory` holds `draft/config.json` and `draft.onnx`. Block rows are overwritten in the next round."""

    def __init__(self, directory: Path, slots: int, context: int, depth: int, threads: int):
        directory = Path(directory)
        self.config = DraftConfig.load(directory / "draft")
        if depth > self.config.depth:
            raise ConfigError(
                f"draft_depth is {depth}, the head was trained for {self.config.depth}; rebuild with less"
            )
        self.slots, self.context, self.depth = slots, context, depth
        self._blocks_per_slot = -(-(context + self.config.block_size) // BLOCK)
        blocks = slots * self._blocks_per_slot + 1
        self._scratch = blocks - 1
        shape = (self.config.num_layers, 2, blocks, self.config.num_kv_heads, BLOCK, self.config.head_dim)
        self._model = PagedModel(directory / "draft.onnx", np.zeros(shape, np.float32), threads)
        self.width = self._model.last_dimension("ids")

    def propose_rows(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        proposing = np.flatnonzero(np.diff(step.emitted_splits))
        shape = (len(step.slots), self.depth, self.width)
        ids, log_probs = np.zeros(shape, np.int32), np.zeros((*shape[:2], self.width + 1, self.width), np.float32)
        out = self._model.run(self._feeds(step, proposing))
        rows = len(proposing) * self.depth
        ids[proposing] = out["ids"][:rows].reshape(-1, *ids.shape[1:])
        log_probs[proposing] = out["log_probs"][:rows].reshape(-1, *log_probs.shape[1:])
        log_probs[proposing, 0] = log_probs[proposing, 0, -1:]  # above the first depth stands the anchor, no candidate
        return ids, log_probs

    def _feeds(self, step: DraftInput, proposing: np.ndarray) -> dict[str, np.ndarray]:
        size, context_rows = self.depth + 1, len(step.features)  # causal: a shorter block's rows are the same
        anchors = step.emitted[step.emitted_splits[proposing + 1] - 1]
        blocks = max(len(proposing), 1)  # a round of prompt chunks alone still runs one block, on scratch
        block_ids = np.full((blocks, size), self.config.mask_token_id, np.int32)
        block_ids[: len(anchors), 0] = anchors
        batch, kv_order, query_order, block_index, positions = PagedBatch(), [], [], [], []
        block, row = 0, 0

        def append(first_block: int, past: int, context: np.ndarray, with_block: bool) -> None:
            nonlocal block, row
            own = np.arange(block * size, (block + 1) * size) if with_block else np.zeros(0, np.int64)
            count = len(context) + len(own)
            kv_order.append(np.concatenate((context, context_rows + own)))
            query_order.append(np.concatenate((np.zeros(len(context), np.int64), own)))
            block_index.append(row + len(context) + np.arange(len(own)))
            positions.append(past + np.arange(count))
            batch.add(first_block, past, None, None, count)
            block, row = block + with_block, row + count

        has_block = np.diff(step.emitted_splits) > 0
        for b, slot in enumerate(step.slots):
            context = np.arange(step.feature_splits[b], step.feature_splits[b + 1])
            append(slot * self._blocks_per_slot, step.lengths[b], context, bool(has_block[b]))
        if not len(proposing):
            append(self._scratch, 0, np.zeros(0, np.int64), True)
        proposal_rows = np.arange(blocks * size).reshape(blocks, size)[:, 1:].ravel()
        orders = {"kv_order": kv_order, "query_order": query_order, "block_index": block_index, "positions": positions}
        return {
            "features": np.ascontiguousarray(step.features, np.float32),
            "block_ids": block_ids.ravel(),
            "proposal_rows": proposal_rows.astype(np.int32),
            **{name: np.concatenate(parts).astype(np.int32) for name, parts in orders.items()},
            **batch.feeds(),
        }
