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
    """Write the graph `features (C, n * H), block_ids (T), ... -> ids (P, width), log_probs (P, width + 1, width)`.

    The `C + T` rows of the step stand in sequence order: `kv_order` picks them from [context rows, block rows], `query_order`
    picks their queries from the block rows (a context row may pick any, its output is unused), `block_index (T)` finds the block
    rows again, `proposal_rows (P)` are the block rows (index into T) that propose, a block's in order of depth: row `width` of
    `log_probs` is the depth's own, the others are conditional on the candidates of the row before. `positions (C + T)`.
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
    width = min(width, len(proposed))
    logits = g.linear(x, proposed, "draft_lm_head")
    values, index = g.ops("TopK", 2, logits, g.constant(np.array([width], np.int64)), axis=-1)
    total = g.op("ReduceLogSumExp", logits, g.constant(np.array([1], np.int64)), keepdims=1)
    if vocab is None:
        ids = g.op("Cast", index, to=int32)
    else:
        ids = g.op("Gather", g.constant(vocab, "draft_vocab"), index)
    marginal = g.op("Unsqueeze", g.op("Sub", values, total), g.constant(np.array([1], np.int64)))
    if config.parent_size:
        above = g.embedding(_flat(g, _row_before(g, ids)), embedding, "embed_tokens")
        children = g.embedding(_flat(g, index), proposed, "draft_lm_head")
        children = L.split_heads(g, children, width, config.hidden_size)
        corrected = _corrected(g, x, above, width, config, tensors)
        scores = g.op("MatMul", corrected, g.op("Transpose", children, perm=[0, 2, 1]))
        scores = g.op("Sub", scores, g.op("Unsqueeze", total, g.constant(np.array([2], np.int64))))
        conditional = renormalised(g, scores, marginal)
    else:
        conditional = g.op("Expand", marginal, g.constant(np.array([1, width, 1], np.int64)))
    g.output(ids, "ids", int32, ["P", width])
    g.output(g.op("Concat", conditional, marginal, axis=1), "log_probs", TensorProto.FLOAT, ["P", width + 1, width])
    g.save(path)


def _flat(g: GraphWriter, x: str) -> str:
    return g.op("Reshape", x, g.constant(np.array([-1], np.int64)))


def _row_before(g: GraphWriter, ids: str) -> str:
    """`(P, W)` moved down by one row: the candidates of the depth above (a block's first row gets nothing meaningful)."""
    zero, one, last = (g.constant(np.array([i], np.int64)) for i in (0, 1, -1))
    return g.op("Concat", g.op("Slice", ids, zero, one, zero), g.op("Slice", ids, zero, last, zero), axis=0)


def _corrected(g: GraphWriter, x: str, above: str, width: int, config: DraftConfig, tensors) -> str:
    """Hidden states `(P, W, H)` of rows `x (P, H)` below each of their candidates above, embedded `(P * W, H)`."""
    axis = g.constant(np.array([1], np.int64))
    hidden = g.op("Unsqueeze", g.linear(x, tensors["parent.hidden.weight"], "parent.hidden"), axis)
    token = g.linear(above, tensors["parent.token.weight"], "parent.token")
    inner = g.op("Add", L.split_heads(g, token, width, config.parent_size), hidden)
    inner = L.merge_heads(g, g.op("Mul", inner, g.op("Sigmoid", inner)), config.parent_size)
    change = g.linear(inner, tensors["parent.out.weight"], "parent.out")
    return g.op("Add", L.split_heads(g, change, width, config.hidden_size), g.op("Unsqueeze", x, axis))


def renormalised(g: GraphWriter, scores: str, marginal: str) -> str:
    """Log-probabilities `(..., W, W)` float32 of a depth's candidates below each candidate above; see `DraftHead.candidates`.

    scores: `(..., W, W)`, corrected logits less the depth's own log-sum; marginal: `(..., 1, W)`.
    """
    axis = g.constant(np.array([-1], np.int64))
    listed = g.op("ReduceSum", g.op("Exp", marginal), axis, keepdims=1)
    rest = g.op("Max", g.op("Sub", g.constant(np.float32(1)), listed), g.constant(np.float32(1e-6)))
    mass = g.op("Add", g.op("ReduceSum", g.op("Exp", scores), axis, keepdims=1), rest)
    return g.op("Sub", scores, g.op("Log", mass))


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
