"""The draft head as an ONNX graph with caches written in place (the GPU engines' cache style)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jetspec_triton.checkpoint import DraftConfig
from onnx import TensorProto

from . import inplace_layers as L
from .writer import GraphWriter


def write_inplace_draft(
    config: DraftConfig,
    tensors: dict[str, np.ndarray],
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
    mask bool (B, 1, depth + 1, SM), past_* -> ids int32 (B, depth, width), log_probs float32 (B, depth, width), present_*`.

    Integers are int64, floats `dtype`. Context rows (new ones only) and block rows are joined before the projections, so each
    cache is written once, at `ctx_start`; the next round overwrites the block's rows. Log-probabilities are over the draft
    vocabulary. `embedding`, `lm_head`: the target's, `(V, H)`.
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
    vocab = tensors.get("draft_vocab")
    logits = L.linear(g, x, lm_head if vocab is None else lm_head[vocab], "draft_lm_head")
    log_probs = g.op("LogSoftmax", L.as_float(g, logits), axis=-1)
    width = min(width, config.vocab_size if vocab is None else len(vocab))
    values, ids = g.ops("TopK", 2, log_probs, g.constant(np.array([width], np.int64)), axis=-1)
    if vocab is not None:
        ids = g.op("Gather", g.constant(vocab.astype(np.int64), "draft_vocab"), ids)
    g.output(g.op("Cast", ids, to=TensorProto.INT32), "ids", TensorProto.INT32, ["B", depth, width])
    g.output(values, "log_probs", TensorProto.FLOAT, ["B", depth, width])
    g.save(path)
