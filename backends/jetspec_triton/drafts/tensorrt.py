"""The draft head on TensorRT: features come and stay on the GPU, only candidates and their log-probabilities leave it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..checkpoint import DraftConfig
from ..errors import StepFailed
from ..in_place import InPlaceModel, Window, block_mask, cache_length, draft_bindings
from .base import DraftEngine, DraftInput


class TensorRTDraft(DraftEngine):
    """`model` runs the graph of `graphs/inplace_draft.py`. Block rows are overwritten in the next round.

    rows: most context rows a slot takes in one step (the target's rows per step).
    """

    def __init__(
        self, config: DraftConfig, slots: int, context: int, depth: int, width: int, rows: int, model: InPlaceModel
    ):
        self.config, self.slots, self.context, self.depth, self.width = config, slots, context, depth, width
        self._rows, self._model, self._device = rows, model, model.caches.device
        self.absorb_rows = rows  # what waits for a proposal is absorbed in one step
        self._held = np.zeros(slots, np.int64)  # context rows of each slot

    @classmethod
    def open(cls, directory: Path, slots: int, context: int, depth: int, rows: int, device: int = 0) -> TensorRTDraft:
        """`directory` holds `draft/config.json`, `draft.plan` and `tensorrt.json`. Raises `ConfigError`."""
        from ..tensorrt_runtime import TensorRTModel, plan_dtype, plan_width

        directory = Path(directory)
        config, width = DraftConfig.load(directory / "draft"), plan_width(directory)
        length = cache_length(context, rows, depth + 1)
        bindings = draft_bindings(config, depth, width, length, plan_dtype(directory))
        model = TensorRTModel(directory / "draft.plan", bindings, slots, device)
        return cls(config, slots, context, depth, width, rows, model)

    @torch.inference_mode()
    def propose_rows(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(step.slots), self.depth, self.width)
        ids, log_probs = np.zeros(shape, np.int32), np.zeros((*shape[:2], self.width + 1, self.width), np.float32)
        most = int(np.diff(step.feature_splits).max())
        if most > self._rows:
            raise StepFailed(f"a slot got {most} context rows, the draft plan takes {self._rows} a step; send fewer")
        window = Window.cover(step.slots, np.diff(step.feature_splits), self.slots, self._rows)
        out = self._model.run(window.first, self._feeds(step, window))
        proposing = np.flatnonzero(np.diff(step.emitted_splits))
        if len(proposing):
            entries = self._put(step.slots[proposing] - window.first)
            ids[proposing] = out["ids"][entries].cpu().numpy()
            log_probs[proposing] = out["log_probs"][entries].cpu().numpy()
        return ids, log_probs

    def _feeds(self, step: DraftInput, window: Window) -> dict[str, torch.Tensor]:
        block, entries, caches = self.depth + 1, step.slots - window.first, self._model.caches
        new = np.diff(step.feature_splits)
        starts = self._held[window.first : window.first + window.slots].copy()
        starts[entries] = step.lengths
        counts = np.zeros(window.slots, np.int64)
        counts[entries] = new
        self._held[step.slots] = step.lengths + new
        block_ids = np.full((window.slots, block), self.config.mask_token_id)
        for entry, first, last in zip(entries, step.emitted_splits[:-1], step.emitted_splits[1:]):
            if last > first:
                block_ids[entry, 0] = step.emitted[last - 1]
        block_positions = (starts + counts)[:, None] + np.arange(block)
        context_positions = starts[:, None] + np.arange(window.rows)
        features = torch.as_tensor(step.features, device=self._device).to(caches.dtype)
        context = features.new_zeros(window.slots * window.rows, features.shape[1])
        context[self._put(window.places(step.slots, new))] = features
        ctx_start = self._put(starts)
        return {
            "block_ids": self._put(block_ids),
            "block_positions": self._put(block_positions),
            "ctx_hidden": context.view(window.slots, window.rows, -1),
            "kv_pos": self._put(np.concatenate((context_positions, block_positions), axis=1)),
            "ctx_start": ctx_start,
            "mask": block_mask(ctx_start, self._put(counts), window.rows, block, caches.shape[4]),
        }

    def _put(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self._device)
