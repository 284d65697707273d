"""A thin writer over the onnx package's helpers: named nodes, weights from NumPy arrays, int8 weight compression."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 24
CUSTOM_DOMAIN = "jetspec"  # operators that an engine's adapter maps to its own (paged attention)


class GraphWriter:
    """Collects nodes and initializers of one graph. Every method returns the name of the tensor it makes."""

    def __init__(self, name: str, int8_weights: bool):
        self.name, self.int8_weights = name, int8_weights
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        return name

    def output(self, tensor: str, name: str, dtype: int, shape: Sequence[int | str]) -> None:
        self._nodes.append(helper.make_node("Identity", [tensor], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))

    def constant(self, array: np.ndarray, name: str | None = None) -> str:
        name = name or self._fresh("const")
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes) -> str:
        return self.ops(kind, 1, *inputs, domain=domain, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, domain: str = "", **attributes) -> list[str]:
        names = [self._fresh(kind.lower()) for _ in range(outputs)]
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
        """Check the graph and write it with its weights beside it (`<path>.data`)."""
        graph = helper.make_graph(
            self._nodes, self.name, self._inputs, self._outputs, initializer=list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CUSTOM_DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="jetspec", ir_version=11)
        data = path.with_suffix(".onnx.data")
        data.unlink(missing_ok=True)
        onnx.save_model(model, path, save_as_external_data=True, location=data.name, size_threshold=1024)
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
