"""Runs a paged-attention graph on OpenVINO's CPU plugin: operator mapping, row buckets, ragged batch inputs.

Activations stay in float32 (`DYNAMIC_QUANTIZATION_GROUP_SIZE=0`): with activations quantised on the fly a row's logits
depend on the shape it ran in, and speculative ids then differ from plain ids.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino._pyopenvino.op import _PagedAttentionExtension
from openvino.frontend.onnx import ConversionExtension

from .errors import ConfigError
from .tree import ancestor_mask

BLOCK = 32  # tokens per cache block; the CPU plugin's only block size


def _convert_paged_attention(node):
    """Map our `PagedAttention` node to the plugin's operator; the inputs we do not use are empty constants."""
    dim = node.get_attribute("head_dim")
    kv_heads = node.get_attribute("num_kv_heads")
    (q, k, v, keys, values, past_lens, row_splits, block_indices, block_splits, max_context, tree_mask, mask_splits) = (
        node.get_input(i) for i in range(12)
    )

    def empty(dtype, rank: int = 1):
        return ops.constant(np.zeros((0,) * rank, dtype)).output(0)

    def scalar(value, dtype=np.int32):
        return ops.constant(np.array(value, dtype)).output(0)

    paged = _PagedAttentionExtension(
        [q, k, v, keys, values, past_lens, row_splits, block_indices, block_splits]
        + [scalar(dim**-0.5, np.float32), scalar(0), empty(np.float32), max_context]  # scale, window, alibi
        + [empty(np.int32), empty(np.int32), empty(np.int32, 2), empty(np.float32, 2)]  # score window, cache rotation
        + [empty(np.float32), scalar(64), scalar(16), empty(np.float32, 4)]  # sparse attention, sinks
        + [scalar(0), empty(np.int32), empty(np.int32), empty(np.int32), empty(np.int32)]  # eviction, token types
        + [tree_mask, mask_splits]
    )
    for key, value in (
        ("num_k_heads", kv_heads),
        ("num_v_heads", kv_heads),
        ("k_head_size", dim),
        ("v_head_size", dim),
    ):
        paged.get_rt_info()[key] = value
    return [paged.output(0)]


class PagedBatch:
    """The ragged batch of one forward: which blocks each sequence reads, where its nodes stand, what they see."""

    def __init__(self):
        self._past: list[int] = []
        self._counts: list[int] = []
        self._blocks: list[np.ndarray] = []
        self._masks: list[np.ndarray] = []

    def add(
        self, first_block: int, past: int, parents: np.ndarray | None, depths: np.ndarray | None, count: int
    ) -> None:
        """A sequence whose blocks start at `first_block`; `parents` None means a causal chain of `count` nodes."""
        self._past.append(past)
        self._counts.append(count)
        self._blocks.append(np.arange(first_block, first_block + -(-(past + count) // BLOCK), dtype=np.int32))
        mask = np.tri(count, dtype=np.uint8) if parents is None else ancestor_mask(parents, depths).view(np.uint8)
        self._masks.append(mask.ravel())

    def feeds(self) -> dict[str, np.ndarray]:
        return {
            "past_lens": np.asarray(self._past, np.int32),
            "row_splits": _splits(self._counts),
            "block_indices": np.concatenate(self._blocks),
            "block_splits": _splits([len(b) for b in self._blocks]),
            "max_context": np.array(max(p + c for p, c in zip(self._past, self._counts)), np.int32),
            "tree_mask": np.concatenate(self._masks),
            "mask_splits": _splits([len(m) for m in self._masks]),
        }


class PagedModel:
    """A graph compiled once for any number of rows and lazily for the few static row counts that are hot.

    caches: float32 `(L, 2, blocks, n_kv, BLOCK, D)`, owned by the caller and written in place by the plugin.
    """

    def __init__(
        self, path: Path, caches: np.ndarray, threads: int, static: dict[int, dict[str, list[int]]] | None = None
    ):
        if not path.is_file():
            raise ConfigError(f"{path} does not exist; run `jetspec build` for this checkpoint first")
        core = ov.Core()
        core.add_extension(ConversionExtension("PagedAttention", "jetspec", _convert_paged_attention))
        self._core, self._caches = core, caches
        self._properties = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "PERFORMANCE_HINT": "LATENCY",
        }
        model = core.read_model(path)
        self._dynamic = self._compile(model, {})
        self._static = {rows: self._compile(model.clone(), shapes) for rows, shapes in sorted((static or {}).items())}

    def last_dimension(self, output: str) -> int:
        return self._dynamic.get_compiled_model().output(output).partial_shape[-1].get_length()

    @property
    def static_rows(self) -> list[int]:
        return list(self._static)

    def run(self, feeds: dict[str, np.ndarray], static_rows: int = 0) -> dict[str, np.ndarray]:
        """Outputs by name, as views that the next run overwrites."""
        request = self._static[static_rows] if static_rows else self._dynamic
        for name, array in feeds.items():
            request.set_tensor(name, ov.Tensor(array, shared_memory=bool(array.ndim)))
        request.infer()
        return {name: request.get_tensor(output).data for output in request.model_outputs for name in output.names}

    def _compile(self, model: ov.Model, shapes: dict[str, list[int]]) -> ov.InferRequest:
        partial = {}
        for port in model.inputs:
            name = port.any_name
            if name in shapes:
                partial[name] = shapes[name]
            elif "_cache." in name:
                partial[name] = list(self._caches.shape[2:])
        model.reshape(partial)
        request = self._core.compile_model(model, "CPU", self._properties).create_infer_request()
        for layer, (keys, values) in enumerate(self._caches):
            request.set_tensor(f"key_cache.{layer}", ov.Tensor(keys, shared_memory=True))
            request.set_tensor(f"value_cache.{layer}", ov.Tensor(values, shared_memory=True))
        return request


def _splits(counts: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
