"""The target in plain PyTorch: slow and obvious, the oracle that the other engines are tested against."""

from __future__ import annotations

import numpy as np
import torch

from ..modules.llama import KVCache, Llama
from ..tree import ancestor_mask
from .base import Forward, Rows, TargetEngine, TargetLimits


class TorchTarget(TargetEngine):
    def __init__(self, model: Llama, limits: TargetLimits, device: str = "cpu"):
        super().__init__(model.config, limits)
        self._model, self._device = model.to(device), device
        self._cache = KVCache.empty(model.config, limits.slots, limits.context + limits.rows_per_step, device=device)

    @torch.inference_mode()
    def forward(self, rows: Rows) -> Forward:
        hidden, features = [], []
        for b, slot in enumerate(rows.slots):
            span = slice(rows.splits[b], rows.splits[b + 1])
            length, parents, depths = int(rows.lengths[b]), rows.parents[span], rows.depths[span]
            count = len(parents)
            own = torch.from_numpy(ancestor_mask(parents, depths))
            mask = torch.cat((torch.ones(count, length, dtype=torch.bool), own), dim=1)[None]
            cache = KVCache(self._cache.k[:, slot : slot + 1], self._cache.v[:, slot : slot + 1])
            ids = torch.from_numpy(rows.tokens[span].astype(np.int64))[None]
            positions = length + torch.from_numpy(depths.astype(np.int64))[None]
            write = length + torch.arange(count)[None]
            ids, positions, mask, write = (t.to(self._device) for t in (ids, positions, mask, write))
            out = self._model(ids, positions, mask, cache, write)
            hidden.append(out.hidden[0])
            features.append(out.features[0])
        wanted = torch.cat(hidden)[torch.from_numpy(rows.logit_nodes.astype(np.int64)).to(self._device)]
        logits = self._model.logits(wanted)
        tensors = (logits, logits.logsumexp(-1), torch.cat(features))
        return Forward(*(tensor.cpu().numpy() for tensor in tensors))

    def commit(self, slot: int, length: int, kept: np.ndarray) -> None:
        source = length + torch.from_numpy(kept).to(self._device)
        for cache in self._cache:
            cache[:, slot, :, length : length + len(kept)] = cache[:, slot][:, :, source]
