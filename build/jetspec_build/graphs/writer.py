"""A thin writer over the onnx package's helpers: named nodes, weights from NumPy arrays, int8 weight compression."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 24
_INLINE = 1024  # bytes; larger weights stand beside the graph
_ALIGNMENT = 4096  # of a weight in the file, so that it can be mapped
CUSTOM_DOMAIN = "jetspec"  # operators that an engine's adapter maps to its own (paged attention)


class GraphWriter:
    """Collects nodes and initializers of one graph. Every method returns the name of the tensor it makes.

    dtype: of the weights and of the activations that carry them (a NumPy or ml_dtypes type).
    """

    def __init__(self, name: str, int8_weights: bool = False, dtype: np.dtype = np.dtype(np.float32)):
        self.name, self.int8_weights, self.dtype = name, int8_weights, np.dtype(dtype)
        self.element_type = helper.np_dtype_to_tensor_dtype(self.dtype)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, np.ndarray] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, tensor: str, name: str, dtype: int, shape: Sequence[int | str]) -> None:
        if tensor != name:
            self._nodes.append(helper.make_node("Identity", [tensor], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def constant(self, array: np.ndarray, name: str | None = None) -> str:
        name = name or self._fresh("const")
        if name not in self._initializers:
            self._initializers[name] = array
        return name

    def weight(self, array: np.ndarray, name: str | None = None) -> str:
        """A constant in the graph's `dtype`."""
        return self.constant(array.astype(self.dtype, copy=False), name)

    def op(self, kind: str, *inputs: str, domain: str = "", name: str | None = None, **attributes) -> str:
        names = [name] if name else None
        return self.ops(kind, 1, *inputs, domain=domain, names=names, **attributes)[0]

    def ops(
        self, kind: str, outputs: int, *inputs: str, domain: str = "", names: list[str] | None = None, **attributes
    ) -> list[str]:
        names = names or [self._fresh(kind.lower()) for _ in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names

    def linear(self, x: str, weight: np.ndarray, name: str) -> str:
        """`x (R, in) @ weight (out, in)^T`."""
        return self.op("Gemm", x, self._dequantized(weight, name), transB=1)

    def embedding(self, ids: str, weight: np.ndarray, name: str) -> str:
        """Rows of `weight (V, H)` at `ids (R)`."""
        if not self.int8_weights:
            return self.op("Gather", self.constant(weight, name), ids)
        self._dequantized(weight, name)  # the table is shared with a tied LM head
        rows = self.op("Cast", self.op("Gather", name, ids), to=TensorProto.FLOAT)
        scales = self.op("Gather", f"{name}.scale", ids)
        return self.op("Mul", rows, self.op("Unsqueeze", scales, self.constant(np.array([1], np.int64))))

    def save(self, path: Path) -> None:
        """Check the graph and write it with its weights beside it (`<path>.data`), one at a time: they may be large."""
        data = path.with_suffix(".onnx.data")
        with data.open("wb") as file:
            initializers = [_stored(array, name, file) for name, array in self._initializers.items()]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, initializer=initializers)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CUSTOM_DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="jetspec", ir_version=11)
        onnx.save_model(model, path)
        onnx.checker.check_model(str(path))

    def _dequantized(self, weight: np.ndarray, name: str) -> str:
        """`weight (out, in)` as float; stored as int8 with one scale per output row when compression is on."""
        if not self.int8_weights:
            return self.constant(weight, name)
        if name not in self._initializers:
            scale = np.maximum(np.abs(weight).max(axis=1), 1e-8).astype(np.float32) / 127
            self.constant(np.rint(weight / scale[:, None]).astype(np.int8), name)
            self.constant(scale, f"{name}.scale")
        return self.op("DequantizeLinear", name, f"{name}.scale", axis=0)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"


def _stored(array: np.ndarray, name: str, file: BinaryIO) -> onnx.TensorProto:
    """The initializer; beyond 1 KiB its bytes go to `file`."""
    array = np.ascontiguousarray(array)
    if array.nbytes < _INLINE:
        return numpy_helper.from_array(array, name)
    file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, data_type=kind, dims=array.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", Path(file.name).name), ("offset", file.tell()), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    array.tofile(file)
    return tensor
