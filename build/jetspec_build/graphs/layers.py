"""Layers that the target's and the draft head's graphs share. Rows are flat: activations are `(R, H)`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from .writer import CUSTOM_DOMAIN, GraphWriter


class Rope(NamedTuple):
    cos: str  # (R, 1, D / 2)
    sin: str


class PagedInputs(NamedTuple):
    """The ragged batch as paged attention reads it; the adapter fills these tensors each step.

    past_lens `(B)`, row_splits `(B + 1)`, block_indices `(n)`, block_splits `(B + 1)`, max_context `()`, int32; tree_mask
    `(sum of N_b^2)` uint8, row-major per sequence, 1 where a node sees a node; mask_splits `(B + 1)` int32.
    """

    past_lens: str
    row_splits: str
    block_indices: str
    block_splits: str
    max_context: str
    tree_mask: str
    mask_splits: str


def paged_inputs(g: GraphWriter) -> PagedInputs:
    int32, uint8 = TensorProto.INT32, TensorProto.UINT8
    return PagedInputs(
        g.input("past_lens", int32, ["B"]),
        g.input("row_splits", int32, ["B1"]),
        g.input("block_indices", int32, ["blocks"]),
        g.input("block_splits", int32, ["B1"]),
        g.input("max_context", int32, []),
        g.input("tree_mask", uint8, ["mask"]),
        g.input("mask_splits", int32, ["B1"]),
    )


def rms_norm(g: GraphWriter, x: str, weight: np.ndarray, eps: float) -> str:
    return g.op("RMSNormalization", x, g.constant(weight), axis=-1, epsilon=eps)


def rope(g: GraphWriter, positions: str, head_dim: int, theta: float) -> Rope:
    frequencies = (theta ** (-np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)).astype(np.float32)
    axes = g.constant(np.array([1, 2], np.int64))
    angles = g.op("Unsqueeze", g.op("Cast", positions, to=TensorProto.FLOAT), axes)
    angles = g.op("Mul", angles, g.constant(frequencies.reshape(1, 1, -1)))
    return Rope(g.op("Cos", angles), g.op("Sin", angles))


def rotate(g: GraphWriter, x: str, table: Rope) -> str:
    """RoPE in the half-split layout on `(R, heads, D)`."""
    first, second = g.ops("Split", 2, x, axis=-1, num_outputs=2)
    low = g.op("Sub", g.op("Mul", first, table.cos), g.op("Mul", second, table.sin))
    high = g.op("Add", g.op("Mul", second, table.cos), g.op("Mul", first, table.sin))
    return g.op("Concat", low, high, axis=-1)


def joined_linear(g: GraphWriter, x: str, weights: list[np.ndarray], name: str) -> list[str]:
    """Several linear layers of one input as one product: fewer, larger kernels."""
    sizes = g.constant(np.array([len(w) for w in weights], np.int64))
    return g.ops("Split", len(weights), g.linear(x, np.concatenate(weights), name), sizes, axis=-1)


def split_heads(g: GraphWriter, x: str, heads: int, dim: int) -> str:
    return g.op("Reshape", x, g.constant(np.array([-1, heads, dim], np.int64)))


def merge_heads(g: GraphWriter, x: str, width: int) -> str:
    return g.op("Reshape", x, g.constant(np.array([-1, width], np.int64)))


def swiglu(g: GraphWriter, x: str, tensors: dict[str, np.ndarray], prefix: str) -> str:
    names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
    gate, up = joined_linear(g, x, [tensors[f"{name}.weight"] for name in names], f"{prefix}.gate_up")
    act = g.op("Mul", gate, g.op("Sigmoid", gate))
    return g.linear(g.op("Mul", act, up), tensors[f"{prefix}.down_proj.weight"], f"{prefix}.down_proj")


def paged_attention(
    g: GraphWriter, q: str, k: str, v: str, layer: int, dims: tuple[int, int, int], paged: PagedInputs
) -> str:
    """Write `k`, `v` `(R, n_kv * D)` into the layer's blocks, then attend. `dims` is (heads, kv heads, D)."""
    heads, kv_heads, dim = dims
    shape = ["num_blocks", kv_heads, "block", dim]
    keys = g.input(f"key_cache.{layer}", TensorProto.FLOAT, shape)
    values = g.input(f"value_cache.{layer}", TensorProto.FLOAT, shape)
    return g.op(
        "PagedAttention",
        q,
        k,
        v,
        keys,
        values,
        *paged,
        domain=CUSTOM_DOMAIN,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
    )
