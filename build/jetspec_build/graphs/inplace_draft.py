"""The draft head as an ONNX graph with caches written in place (the GPU engines' cache style)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jetspec_triton.checkpoint import DraftConfig
from onnx import TensorProto

from . import inplace_layers as L
from .draft_head import renormalised
from .writer import GraphWriter


def write_inplace_draft(
    config: DraftConfig,
    tensors: Mapping[str, np.ndarray],
    embedding: np.ndarray,
    lm_head: np.ndarray,
    width: int,
    depth: int,
    cache_length: int,
    path: Path,
    *,
    dtype: np.dtype,
) -> None:
    """Write `block_ids, block_positions (B, depth + 1), ctx_hidden (B, C, n * H), kv_pos (B, C + depth + 1), ctx_start (B),
    mask bool (B, 1, depth + 1, SM), past_* -> ids int32 (B, depth, width), log_probs float32 (B, depth, width + 1, width),
    present_*`.

    Integers are int64, floats `dtype`. Context rows (new ones only) and block rows are joined before the projections, so each
    cache is written once, at `ctx_start`; the next round overwrites the block's rows. Candidates and log-probabilities are
    those of `DraftHead.candidates`. `embedding`, `lm_head`: the target's, `(V, H)`.
    """
    g = GraphWriter("draft_head", dtype=dtype)
    int64, block = TensorProto.INT64, depth + 1
    block_ids = g.input("block_ids", int64, ["B", block])
    block_positions = g.input("block_positions", int64, ["B", block])
    features = g.input("ctx_hidden", g.element_type, ["B", "C", len(config.target_layer_ids) * config.hidden_size])
    kv_positions = g.input("kv_pos", int64, ["B", "CB"])
    ctx_start = g.input("ctx_start", int64, ["B"])
    mask = g.input("mask", TensorProto.BOOL, ["B", 1, block, cache_length])
    caches = L.Caches(mask, ctx_start, kv_positions, *L.rope_tables(g, config, cache_length), cache_length)
    fused = L.linear(g, features, tensors["fc.weight"], "fc")
    fused = L.rms_norm(g, fused, tensors["hidden_norm.weight"], config.rms_norm_eps)
    x = g.op("Gather", g.weight(embedding, "embed_tokens"), block_ids)
    for i in range(config.num_layers):
        prefix = f"layers.{i}"
        h = L.rms_norm(g, x, tensors[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps)
        rows = g.op("Concat", fused, h, axis=1)
        x = g.op("Add", x, L.attention(g, h, rows, config, tensors, i, caches, block_positions))
        h = L.rms_norm(g, x, tensors[f"{prefix}.post_attention_layernorm.weight"], config.rms_norm_eps)
        x = g.op("Add", x, L.swiglu(g, h, tensors, f"{prefix}.mlp"))
    proposing = (g.constant(np.array([v], np.int64)) for v in (1, block, 1))  # all but the anchor's row
    x = L.rms_norm(g, g.op("Slice", x, *proposing), tensors["norm.weight"], config.rms_norm_eps)
    vocab = tensors["draft_vocab"].astype(np.int64) if config.draft_vocab_size else None
    proposed = lm_head if vocab is None else lm_head[vocab]
    logits = L.as_float(g, L.linear(g, x, proposed, "draft_lm_head"))
    log_probs = g.op("LogSoftmax", logits, axis=-1)
    width = min(width, len(proposed))
    values, index = g.ops("TopK", 2, log_probs, g.constant(np.array([width], np.int64)), axis=-1)
    ids = index if vocab is None else g.op("Gather", g.constant(vocab, "draft_vocab"), index)
    marginal = g.op("Unsqueeze", values, g.constant(np.array([2], np.int64)))
    conditional = g.op("Expand", marginal, g.constant(np.array([1, 1, width, 1], np.int64)))
    if config.parent_size and depth > 1:
        best = g.op("ReduceMax", logits, g.constant(np.array([-1], np.int64)), keepdims=1)
        total = g.op("Sub", best, g.op("ReduceMax", values, g.constant(np.array([-1], np.int64)), keepdims=1))
        below = _below_candidates(g, x, ids, index, total, marginal, tensors, depth)
        conditional = g.op("Concat", _depths(g, conditional, 0, 1), below, axis=1)
    g.output(g.op("Cast", ids, to=TensorProto.INT32), "ids", TensorProto.INT32, ["B", depth, width])
    log_probs = g.op("Concat", conditional, marginal, axis=2)
    g.output(log_probs, "log_probs", TensorProto.FLOAT, ["B", depth, width + 1, width])
    g.save(path)


def _below_candidates(
    g: GraphWriter,
    x: str,
    ids: str,
    index: str,
    total: str,
    marginal: str,
    tensors: Mapping[str, np.ndarray],
    depth: int,
) -> str:
    """`(B, depth - 1, W, W)`: all depths but the first, below each of their candidates above.

    x: `(B, depth, H)`; ids, index: `(B, depth, W)` into the embedding and the LM head; total: `(B, depth, 1)`.
    """
    axis = g.constant(np.array([2], np.int64))
    x, index, total, marginal = (_depths(g, t, 1, depth) for t in (x, index, total, marginal))
    above = g.op("Gather", "embed_tokens", _depths(g, ids, 0, depth - 1))
    hidden = g.op("Unsqueeze", L.linear(g, x, tensors["parent.hidden.weight"], "parent.hidden"), axis)
    inner = g.op("Add", L.linear(g, above, tensors["parent.token.weight"], "parent.token"), hidden)
    inner = g.op("Mul", inner, g.op("Sigmoid", inner))
    change = L.linear(g, inner, tensors["parent.out.weight"], "parent.out")
    corrected = g.op("Add", change, g.op("Unsqueeze", x, axis))
    children = g.op("Transpose", g.op("Gather", "draft_lm_head", index), perm=[0, 1, 3, 2])
    scores = g.op("Sub", L.as_float(g, g.op("MatMul", corrected, children)), g.op("Unsqueeze", total, axis))
    return renormalised(g, scores, marginal)


def _depths(g: GraphWriter, x: str, start: int, stop: int) -> str:
    """`x[:, start:stop]`."""
    return g.op("Slice", x, *(g.constant(np.array([v], np.int64)) for v in (start, stop, 1)))
