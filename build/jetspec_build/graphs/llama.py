"""The Llama-family or Qwen3 target as an ONNX graph over flat rows with paged attention (the CPU engine's cache style)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jetspec_triton.checkpoint import TargetConfig
from onnx import TensorProto

from . import layers as L
from .writer import GraphWriter


def write_target(
    config: TargetConfig, tensors: Mapping[str, np.ndarray], capture: tuple[int, ...], path: Path, *, int8: bool
) -> None:
    """Write the graph `input_ids (R), positions (R), logit_rows (M), caches -> logits (M, V), log_norm (M), features (R, n * H)`.

    `logit_rows` picks the rows whose logits are wanted, so prompt rows pay for no LM head. `tensors` are named as in
    the Hugging Face checkpoint without the `model.` prefix.
    """
    g = GraphWriter("target", int8)
    ids = g.input("input_ids", TensorProto.INT32, ["R"])
    positions = g.input("positions", TensorProto.INT32, ["R"])
    logit_rows = g.input("logit_rows", TensorProto.INT32, ["M"])
    paged = L.paged_inputs(g)
    dims = (config.num_heads, config.num_kv_heads, config.head_dim)
    table = L.rope(g, positions, config.head_dim, config.rope_theta)
    x = g.embedding(ids, tensors["embed_tokens.weight"], "embed_tokens")
    captured = {}
    for i in range(config.num_layers):
        x = _layer(g, x, config, tensors, i, dims, table, paged)
        if i in capture:
            captured[i] = x
    features = g.op("Concat", *(captured[i] for i in capture), axis=-1)
    g.output(features, "features", TensorProto.FLOAT, ["R", len(capture) * config.hidden_size])
    x = L.rms_norm(g, g.op("Gather", x, logit_rows), tensors["norm.weight"], config.rms_norm_eps)
    head = "embed_tokens" if config.tie_word_embeddings else "lm_head"
    logits = g.linear(x, tensors[f"{head}.weight"], head)
    g.output(logits, "logits", TensorProto.FLOAT, ["M", config.vocab_size])
    g.output(
        g.op("ReduceLogSumExp", logits, g.constant(np.array([-1], np.int64)), keepdims=0),
        "log_norm",
        TensorProto.FLOAT,
        ["M"],
    )
    g.save(path)


def _layer(g, x, config, tensors, i, dims, table, paged):
    heads, kv_heads, dim = dims
    prefix = f"layers.{i}"
    h = L.rms_norm(g, x, tensors[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps)
    weights = [tensors[f"{prefix}.self_attn.{n}.weight"] for n in ("q_proj", "k_proj", "v_proj")]
    q, k, v = L.joined_linear(g, h, weights, f"{prefix}.qkv")
    q, k = L.split_heads(g, q, heads, dim), L.split_heads(g, k, kv_heads, dim)
    if config.qk_norm:
        q = L.rms_norm(g, q, tensors[f"{prefix}.self_attn.q_norm.weight"], config.rms_norm_eps)
        k = L.rms_norm(g, k, tensors[f"{prefix}.self_attn.k_norm.weight"], config.rms_norm_eps)
    q = L.merge_heads(g, L.rotate(g, q, table), heads * dim)
    k = L.merge_heads(g, L.rotate(g, k, table), kv_heads * dim)
    attention = L.paged_attention(g, q, k, v, i, dims, paged)
    x = g.op("Add", x, g.linear(attention, tensors[f"{prefix}.self_attn.o_proj.weight"], f"{prefix}.o_proj"))
    h = L.rms_norm(g, x, tensors[f"{prefix}.post_attention_layernorm.weight"], config.rms_norm_eps)
    return g.op("Add", x, L.swiglu(g, h, tensors, f"{prefix}.mlp"))
