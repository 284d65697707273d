"""Layers of the in-place graphs (GPU): activations are `(B, S, H)`, caches are inputs that come back as outputs.

Only operators that TensorRT maps to its own layers: `Attention` with a boolean mask, `TensorScatter` (an in-place cache
update there), `RMSNormalization`, `RotaryEmbedding`. The graph is strongly typed: norms run in float32; a fused attention does its softmax so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from onnx import TensorProto

from .writer import GraphWriter


class Caches(NamedTuple):
    """What places the step's rows: `mask (B, 1, Q, SM)` bool, `write_idx (B)`, `positions (B, S)`, RoPE tables `(SM, D / 2)`."""

    mask: str
    write_idx: str
    positions: str
    cos: str
    sin: str
    length: int  # SM, rows of a slot's cache


def rope_tables(g: GraphWriter, config: TargetConfig | DraftConfig, length: int) -> tuple[str, str]:
    """cos and sin of the positions below `length`: no row of a cache stands beyond."""
    dim = config.head_dim
    frequencies = (config.rope_theta ** (-np.arange(0, dim, 2, dtype=np.float32) / dim)).astype(np.float32)
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies
    return g.weight(np.cos(angles), "rope.cos"), g.weight(np.sin(angles), "rope.sin")


def linear(g: GraphWriter, x: str, weight: np.ndarray, name: str) -> str:
    """`x (B, S, in) @ weight (out, in)^T`."""
    return g.op("MatMul", x, g.op("Transpose", g.weight(weight, name), perm=[1, 0]))


def as_float(g: GraphWriter, x: str) -> str:
    return x if g.element_type == TensorProto.FLOAT else g.op("Cast", x, to=TensorProto.FLOAT)


def rms_norm(g: GraphWriter, x: str, weight: np.ndarray, eps: float) -> str:
    scale = g.constant(weight.astype(np.float32))
    out = g.op("RMSNormalization", as_float(g, x), scale, axis=-1, epsilon=eps)
    return out if g.element_type == TensorProto.FLOAT else g.op("Cast", out, to=g.element_type)


def heads_of(g: GraphWriter, x: str, heads: int, dim: int, norm: np.ndarray | None, eps: float) -> str:
    """`(B, S, heads * D)` -> `(B, heads, S, D)`, normalised over `D` where the checkpoint has a weight for it."""
    x = g.op("Reshape", x, g.constant(np.array([0, 0, heads, dim], np.int64)))
    if norm is not None:
        x = rms_norm(g, x, norm, eps)
    return g.op("Transpose", x, perm=[0, 2, 1, 3])


def attention(
    g: GraphWriter,
    queries: str,
    rows: str,
    config: TargetConfig | DraftConfig,
    tensors: Mapping[str, np.ndarray],
    layer: int,
    caches: Caches,
    query_positions: str,
) -> str:
    """Write K/V of `rows (B, S, H)` into the layer's caches, then attend from `queries (B, Q, H)`; the output projection included."""
    heads, kv_heads, dim, eps = config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps
    prefix = f"layers.{layer}.self_attn"

    def project(x: str, name: str, count: int) -> str:
        y = linear(g, x, tensors[f"{prefix}.{name}_proj.weight"], f"{prefix}.{name}_proj")
        return heads_of(g, y, count, dim, tensors.get(f"{prefix}.{name}_norm.weight"), eps)

    def rotate(x: str, positions: str) -> str:
        return g.op("RotaryEmbedding", x, caches.cos, caches.sin, positions)

    q = rotate(project(queries, "q", heads), query_positions)
    k = rotate(project(rows, "k", kv_heads), caches.positions)
    v = project(rows, "v", kv_heads)
    shape = ["B", kv_heads, caches.length, dim]
    stored = []
    for name, update in (("k", k), ("v", v)):
        past = g.input(f"past_{name}_{layer}", g.element_type, shape)
        present = f"present_{name}_{layer}"
        stored.append(g.op("TensorScatter", past, update, caches.write_idx, axis=-2, name=present))
        g.output(present, present, g.element_type, shape)
    out = g.op("Attention", q, *stored, caches.mask)
    out = g.op("Transpose", out, perm=[0, 2, 1, 3])
    out = g.op("Reshape", out, g.constant(np.array([0, 0, heads * dim], np.int64)))
    return linear(g, out, tensors[f"{prefix}.o_proj.weight"], f"{prefix}.o_proj")


def swiglu(g: GraphWriter, x: str, tensors: Mapping[str, np.ndarray], prefix: str) -> str:
    gate, up = (linear(g, x, tensors[f"{prefix}.{n}.weight"], f"{prefix}.{n}") for n in ("gate_proj", "up_proj"))
    act = g.op("Mul", gate, g.op("Sigmoid", gate))
    return linear(g, g.op("Mul", act, up), tensors[f"{prefix}.down_proj.weight"], f"{prefix}.down_proj")
