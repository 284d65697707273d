"""The target as an ONNX graph with caches written in place (the GPU engines' cache style)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jetspec_triton.checkpoint import TargetConfig
from onnx import TensorProto

from . import inplace_layers as L
from .writer import GraphWriter


def write_inplace_target(
    config: TargetConfig,
    tensors: Mapping[str, np.ndarray],
    capture: tuple[int, ...],
    cache_length: int,
    path: Path,
    *,
    dtype: np.dtype,
) -> None:
    """Write `input_ids, position_ids (B, S), tree_mask bool (B, 1, S, SM), write_idx (B), past_* -> logits (B, S, V), hidden (B, S, n * H), present_*`.

    Integers are int64, floats `dtype`. `SM` is `cache_length`. The step's rows are written at `write_idx` and after, before
    they attend. `tensors` are named as in the Hugging Face checkpoint without the `model.` prefix; queries and keys are
    normalised where it has `q_norm` and `k_norm`.
    """
    g = GraphWriter("target", dtype=dtype)
    ids = g.input("input_ids", TensorProto.INT64, ["B", "S"])
    positions = g.input("position_ids", TensorProto.INT64, ["B", "S"])
    mask = g.input("tree_mask", TensorProto.BOOL, ["B", 1, "S", cache_length])
    write_idx = g.input("write_idx", TensorProto.INT64, ["B"])
    caches = L.Caches(mask, write_idx, positions, *L.rope_tables(g, config, cache_length), cache_length)
    x = g.op("Gather", g.weight(tensors["embed_tokens.weight"], "embed_tokens"), ids)
    captured = {}
    for i in range(config.num_layers):
        prefix = f"layers.{i}"
        h = L.rms_norm(g, x, tensors[f"{prefix}.input_layernorm.weight"], config.rms_norm_eps)
        x = g.op("Add", x, L.attention(g, h, h, config, tensors, i, caches, positions))
        h = L.rms_norm(g, x, tensors[f"{prefix}.post_attention_layernorm.weight"], config.rms_norm_eps)
        x = g.op("Add", x, L.swiglu(g, h, tensors, f"{prefix}.mlp"))
        if i in capture:
            captured[i] = x
    hidden = g.op("Concat", *(captured[i] for i in capture), axis=-1)
    g.output(hidden, "hidden", g.element_type, ["B", "S", len(capture) * config.hidden_size])
    x = L.rms_norm(g, x, tensors["norm.weight"], config.rms_norm_eps)
    head = "embed_tokens" if config.tie_word_embeddings else "lm_head"
    logits = L.linear(g, x, tensors[f"{head}.weight"], head)
    g.output(logits, "logits", g.element_type, ["B", "S", config.vocab_size])
    g.save(path)
