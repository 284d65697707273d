"""The draft head in plain PyTorch: recomputes the whole context's K/V in every round. The other engines' oracle."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..modules.draft_head import DraftHead
from ..modules.llama import causal_mask
from .base import DraftEngine, DraftInput


class TorchDraft(DraftEngine):
    """embedding, lm_head: the target's, `(V, H)`."""

    def __init__(
        self,
        head: DraftHead,
        embedding: Tensor,
        lm_head: Tensor,
        slots: int,
        context: int,
        width: int = 16,
        device: str = "cpu",
    ):
        self.config, self.slots, self.context, self.width = head.config, slots, context, width
        self.depth = head.config.depth
        self._head, self._embedding, self._device = head.to(device), embedding.to(device), device
        self._lm_head = lm_head.to(device)[head.draft_vocab.long()]
        self._fused = [torch.zeros(0, head.config.hidden_size, device=device)] * slots

    @torch.inference_mode()
    def propose_rows(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(step.slots), self.depth, self.width)
        ids, log_probs = np.zeros(shape, np.int32), np.zeros((*shape[:2], self.width + 1, self.width), np.float32)
        for b, slot in enumerate(step.slots):
            features = torch.from_numpy(step.features[step.feature_splits[b] : step.feature_splits[b + 1]])
            new = self._head.fuse(features.to(self._device))
            self._fused[slot] = torch.cat((self._fused[slot][: step.lengths[b]], new))
            emitted = step.emitted[step.emitted_splits[b] : step.emitted_splits[b + 1]]
            if len(emitted):
                ids[b], log_probs[b] = self._propose_one(self._fused[slot], int(emitted[-1]))
        return ids, log_probs

    def _propose_one(self, fused: Tensor, anchor: int) -> tuple[np.ndarray, np.ndarray]:
        size, context = self.config.block_size, len(fused)
        block = torch.full((size,), self.config.mask_token_id, device=self._device)
        block[0] = anchor
        mask = torch.cat((torch.ones(1, size, context, dtype=torch.bool), causal_mask(size)), dim=2).to(self._device)
        positions = torch.arange(context + size, device=self._device)[None]
        hidden = self._head(
            fused[None], positions[:, :context], self._embedding[block][None], positions[:, context:], mask
        )
        ids, log_probs = self._head.candidates(hidden[:, 1:], self._embedding, self._lm_head, self.width)
        return ids[0].cpu().numpy(), log_probs[0].cpu().numpy()
