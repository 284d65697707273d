"""What docs/tensorrt_llm.md says the kernels of TensorRT-LLM do with a step, in plain PyTorch on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from jetspec_triton.modules.llama import KVCache, Llama
from jetspec_triton.packed_tree import WORD, PackedTrees
from jetspec_triton.targets.tensorrt_llm import EngineOutput, EngineStep


class ReferenceRuntime:
    """Reads masks bit by bit and finds a node's position itself. Rows never written hold values that spoil a result."""

    def __init__(self, model: Llama, slots: int, rows: int):
        self._model, self._rows = model, rows
        self._cache = KVCache.empty(model.config, slots, rows)
        for cache in self._cache:
            cache.fill_(1e3)

    def forward(self, step: EngineStep, logit_tokens: np.ndarray) -> EngineOutput:
        assert len(set(step.counts[step.chunks :])) <= 1, "all but prompt chunks must be equally wide"
        ends = np.cumsum(step.counts)
        hidden, features = [], []
        for s, (slot, count, cached) in enumerate(zip(step.slots, step.counts, step.cached)):
            assert cached + count <= self._rows
            span = slice(ends[s] - count, ends[s])
            own, positions = torch.ones(count, count).tril().bool(), cached + torch.arange(count)
            if s >= step.chunks and step.trees is not None:
                own, offsets = _unpack(step.trees, s - step.chunks)
                positions = cached + offsets
            assert step.positions[span].tolist() == positions.tolist()
            mask = torch.cat((torch.ones(count, cached, dtype=torch.bool), own), dim=1)[None]
            cache = KVCache(*(c[:, slot : slot + 1] for c in self._cache))
            ids = torch.from_numpy(step.tokens[span].astype(np.int64))[None]
            out = self._model(ids, positions[None], mask, cache, cached + torch.arange(count)[None])
            hidden.append(out.hidden[0])
            features.append(out.features[0])
        wanted = torch.cat(hidden)[torch.from_numpy(logit_tokens)]
        return EngineOutput(self._model.logits(wanted), torch.cat(features))

    def compact(self, step: EngineStep, moved: list[np.ndarray]) -> None:
        """As the release's own op counts: from the end of the written rows, one common number of rows back."""
        width = step.counts[-1]
        for slot, count, cached, rows in zip(step.slots, step.counts, step.cached, moved):
            start = cached + count - (width - 1)
            for cache in self._cache if len(rows) else ():
                cache[:, slot, :, start : start + len(rows)] = cache[:, slot][:, :, start + torch.from_numpy(rows)]


def _unpack(trees: PackedTrees, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    own = [
        [bool((int(words[j // WORD]) & 0xFFFFFFFF) >> (j % WORD) & 1) for j in range(trees.width)]
        for words in trees.mask[row]
    ]
    return torch.tensor(own), torch.from_numpy(trees.offsets[row].astype(np.int64))
