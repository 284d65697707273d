"""The target on TensorRT: caches, logits and features stay on the GPU; only the sampled tokens come to the host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..checkpoint import DraftConfig, TargetConfig
from ..in_place import InPlaceModel, Window, cache_length, target_bindings, tree_mask
from ..tree import ancestor_mask
from .base import Draws, Forward, Rows, TargetEngine, TargetLimits, Wanted
from .device_draws import draws_on_device

if TYPE_CHECKING:
    from ..step import StepBatch


class TensorRTTarget(TargetEngine):
    """`model` runs the graph of `graphs/inplace_target.py`; everything else here is torch on the model's device."""

    def __init__(self, config: TargetConfig, limits: TargetLimits, model: InPlaceModel):
        super().__init__(config, limits)
        self._model, self._device = model, model.caches.device

    @classmethod
    def open(cls, directory: Path, limits: TargetLimits, device: int = 0) -> TensorRTTarget:
        """`directory` holds `config.json`, `draft/config.json`, `target.plan` and `tensorrt.json`. Raises `ConfigError`."""
        from ..tensorrt_runtime import TensorRTModel, plan_dtype

        directory = Path(directory)
        config, captured = TargetConfig.load(directory), len(DraftConfig.load(directory / "draft").target_layer_ids)
        length = cache_length(limits.context, limits.rows_per_step)
        bindings = target_bindings(config, captured, length, plan_dtype(directory))
        return cls(config, limits, TensorRTModel(directory / "target.plan", bindings, limits.slots, device))

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Forward:
        counts = np.diff(rows.splits)
        window = Window.cover(rows.slots, counts, self.limits.slots, self.limits.rows_per_step)
        places = window.places(rows.slots, counts)
        ids, positions = np.zeros((2, window.slots * window.rows), np.int64)
        ids[places] = rows.tokens
        positions[places] = np.repeat(rows.lengths, counts) + rows.depths
        lengths = self._committed[window.first : window.first + window.slots].copy()
        lengths[rows.slots - window.first] = rows.lengths
        own = np.zeros((window.slots, window.rows, window.rows), bool)
        own[:] = np.eye(window.rows, dtype=bool)  # padding sees itself: a row that sees nothing would be NaN
        for b, slot in enumerate(rows.slots):
            span = slice(rows.splits[b], rows.splits[b + 1])
            own[slot - window.first, : counts[b], : counts[b]] = ancestor_mask(rows.parents[span], rows.depths[span])
        shape, starts = (window.slots, window.rows), self._put(lengths)
        out = self._model.run(
            window.first,
            {
                "input_ids": self._put(ids.reshape(shape)),
                "position_ids": self._put(positions.reshape(shape)),
                "tree_mask": tree_mask(self._put(own), starts, self._model.caches.shape[4]),
                "write_idx": starts,
            },
        )
        logits = out["logits"].flatten(0, 1)[self._put(places[rows.logit_nodes])].float()
        return Forward(logits, logits.logsumexp(-1), out["hidden"].flatten(0, 1)[self._put(places)])

    @torch.inference_mode()
    def draws(self, batch: StepBatch, wanted: Wanted, out: Forward) -> Draws:
        return draws_on_device(batch, wanted, out)

    @torch.inference_mode()
    def commit(self, slot: int, length: int, kept: np.ndarray) -> None:
        moved = kept != np.arange(len(kept))
        if moved.any():
            cache = self._model.caches[:, :, slot]
            target = self._put(length + np.flatnonzero(moved))
            cache[:, :, :, target] = cache[:, :, :, self._put(length + kept[moved])]

    def _put(self, values: np.ndarray) -> torch.Tensor:
        """On the device; integers as int64."""
        values = values if values.dtype == bool else values.astype(np.int64)
        return torch.from_numpy(values).to(self._device)
