"""The draft head as an ONNX graph over flat rows with paged attention (the CPU engine's cache style).

New context rows and block rows of a sequence stand together in cache order, so one paged attention a layer writes the
context's K/V for good and the block's K/V where the next round overwrites it. Within a sequence the mask is plainly causal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jetspec_triton.checkpoint import DraftConfig
from onnx import TensorProto

from . import layers as L
from .writer import GraphWriter


def write_draft_head(
    config: DraftConfig,
    tensors: Mapping[str, np.ndarray],
    embedding: np.ndarray,
    lm_head: np.ndarray,
    width: int,
    path: Path,
    *,
    int8: bool,
) -> None:
    """Write the graph `features (C, n * H), block_ids (T), ... -> ids (P, width), log_probs (P, width)`.

    The `C + T` rows of the step stand in sequence order: `kv_order` picks them from [context rows, block rows], `query_order`
    picks their queries from the block rows (a context row may pick any, its output is unused), `block_index (T)` finds the block
    rows again, `proposal_rows (P)` are the block rows (index into T) that propose. `positions (C + T)`.
    """
    g = GraphWriter("draft_head", int8)
    int32 = TensorProto.INT32
    features = g.input("features", TensorProto.FLOAT, ["C", len(config.target_layer_ids) * config.hidden_size])
    block_ids = g.input("block_ids", int32, ["T"])
    positions, kv_order, query_order = (g.input(n, int32, ["N"]) for n in ("positions", "kv_order", "query_order"))
    block_index = g.input("block_index", int32, ["T"])
    proposal_rows = g.input("proposal_rows", int32, ["P"])
    paged = L.paged_inputs(g)
    table = L.rope(g, positions, config.head_dim, config.rope_theta)
    fused = g.linear(features, tensors["fc.weight"], "fc")
    fused = L.rms_norm(g, fused, tensors["hidden_norm.weight"], config.rms_norm_eps)
    x = g.embedding(block_ids, embedding, "embed_tokens")
    for i in range(config.num_layers):
        prefix = f"layers.{i}"
        h = L.rms_norm(g, x, tensors[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps)
        attention = _attention(g, h, fused, config, tensors, i, table, (kv_order, query_order, block_index), paged)
        x = g.op("Add", x, g.linear(attention, tensors[f"{prefix}.self_attn.o_proj.weight"], f"{prefix}.o_proj"))
        h = L.rms_norm(g, x, tensors[f"{prefix}.post_attention_layernorm.weight"], config.rms_norm_eps)
        x = g.op("Add", x, L.swiglu(g, h, tensors, f"{prefix}.mlp"))
    x = L.rms_norm(g, g.op("Gather", x, proposal_rows), tensors["norm.weight"], config.rms_norm_eps)
    vocab = tensors["draft_vocab"].astype(np.int32) if config.draft_vocab_size else None
    proposed = lm_head if vocab is None else lm_head[vocab]
    log_probs = g.op("LogSoftmax", g.linear(x, proposed, "draft_lm_head"), axis=-1)
    width = min(width, len(proposed))
    values, index = g.ops("TopK", 2, log_probs, g.constant(np.array([width], np.int64)), axis=-1)
    if vocab is None:
        ids = g.op("Cast", index, to=int32)
    else:
        ids = g.op("Gather", g.constant(vocab, "draft_vocab"), index)
    g.output(ids, "ids", int32, ["P", width])
    g.output(values, "log_probs", TensorProto.FLOAT, ["P", width])
    g.save(path)


def _attention(g, h, fused, config, tensors, i, table, orders, paged):
    kv_order, query_order, block_index = orders
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    weights = {
        n: tensors[f"layers.{i}.self_attn.{n}.weight"] for n in ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")
    }
    q = g.op("Gather", g.linear(h, weights["q_proj"], f"layers.{i}.q_proj"), query_order)
    source = g.op("Gather", g.op("Concat", fused, h, axis=0), kv_order)
    k, v = L.joined_linear(g, source, [weights["k_proj"], weights["v_proj"]], f"layers.{i}.kv")
    q = L.rms_norm(g, L.split_heads(g, q, heads, dim), weights["q_norm"], config.rms_norm_eps)
    k = L.rms_norm(g, L.split_heads(g, k, kv_heads, dim), weights["k_norm"], config.rms_norm_eps)
    q = L.merge_heads(g, L.rotate(g, q, table), heads * dim)
    k = L.merge_heads(g, L.rotate(g, k, table), kv_heads * dim)
    attention = L.paged_attention(g, q, k, v, i, (heads, kv_heads, dim), paged)
    return g.op("Gather", attention, block_index)
