"""Runs an in-place graph on ONNX Runtime with the interface of the TensorRT model: what proves its numbers on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import torch
from jetspec_triton.in_place import Bindings
from torch import Tensor

_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(bool)": torch.bool,
}


class OnnxRuntimeModel:
    def __init__(self, path: Path, bindings: Bindings, slots: int):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3  # it warns at each step that it copies the caches
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._bindings = bindings
        declared = {
            tensor.name: (_TYPES[tensor.type], tuple(tensor.shape))
            for tensor in (*self._session.get_inputs(), *self._session.get_outputs())
        }
        assert declared == bindings.of_every_tensor()
        shape = bindings.cache.sized({"B": slots})
        self.caches = torch.zeros(len(bindings.caches) // 2, 2, *shape, dtype=bindings.cache.dtype)

    def run(self, first_slot: int, feeds: dict[str, Tensor]) -> dict[str, Tensor]:
        assert feeds.keys() == self._bindings.inputs.keys()
        window = self.caches[:, :, first_slot : first_slot + len(next(iter(feeds.values())))]
        pasts = dict(zip(self._bindings.caches, window.flatten(0, 1)))
        arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in {**feeds, **pasts}.items()}
        names = [*self._bindings.outputs, *self._bindings.caches.values()]
        results = {n: torch.from_numpy(a) for n, a in zip(names, self._session.run(names, arrays))}
        for past, present in self._bindings.caches.items():
            pasts[past].copy_(results.pop(present))
        return results
