"""The in-place graphs through the real compiler, TensorRT-RTX ahead of time: what compiles, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jetspec_build import tensorrt_graphs
from jetspec_build.tensorrt_build import LayerCounts
from jetspec_build.tensorrt_engine import row_ranges
from jetspec_build.tensorrt_graphs import compile_graph, profile, write_draft_graph, write_target_graph
from jetspec_triton.checkpoint import DraftConfig
from jetspec_triton.config import Manifest
from jetspec_triton.errors import ConfigError
from jetspec_triton.in_place import draft_bindings
from jetspec_triton.weights import load_tensors

from .built import CONTEXT, LAYERS, SLOTS

MANIFEST = Manifest("tensorrt", "target", "head", False, SLOTS, CONTEXT, 64, 4)


@pytest.fixture(scope="module")
def rtx():
    return pytest.importorskip("tensorrt_rtx", reason="install the trt-check extra")


def target_graph(built, dtype: str, out):
    return write_target_graph(built.model.config, load_tensors(built.checkpoint), LAYERS, MANIFEST, dtype, out)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_both_graphs_compile_with_fused_layers(built, rtx, tmp_path, dtype):
    plan = compile_graph(rtx, target_graph(built, dtype, tmp_path), ahead_of_time=True)
    assert plan.layers == LayerCounts(cache_updates=6, attentions=3) and plan.data.nbytes > 10_000
    table = built.model.embed_tokens.weight.numpy()
    config, tensors = DraftConfig.load(built.head), load_tensors(built.head)
    graph = write_draft_graph(config, tensors, table, table, MANIFEST, dtype, tmp_path)
    plan = compile_graph(rtx, graph, ahead_of_time=True)
    assert plan.layers == LayerCounts(cache_updates=4, attentions=2)
    assert not list(tmp_path.glob("*.onnx*"))


def test_other_layer_counts_are_refused_with_both(built, rtx, tmp_path):
    graph = target_graph(built, "float16", tmp_path)._replace(layers=4)
    with pytest.raises(ConfigError, match="cache_updates=6.*cache_updates=8"):
        compile_graph(rtx, graph, ahead_of_time=True)


def test_an_attention_that_cannot_fuse_is_refused(built, rtx, tmp_path, monkeypatch):
    """float32 has no fused kernel: the counts alone would not tell, the build does."""
    monkeypatch.setitem(tensorrt_graphs.DTYPES, "float32", np.dtype(np.float32))
    with pytest.raises(ConfigError, match="dedicated kernel"):
        compile_graph(rtx, target_graph(built, "float32", tmp_path), ahead_of_time=True)


def test_profiles_meet_without_a_gap_and_keep_context_and_block_together():
    assert row_ranges(256) == [(1, 32), (33, 256)] and row_ranges(32) == [(1, 32)]
    bindings = draft_bindings(DraftConfig(64, 80, 2, 4, 2, 32, 96, 1e-5, 1e4, 5, (0, 2), 3, 1), 4, 8, 192, torch.half)
    shapes = profile(bindings, {"B": (1, 8), "C": (33, 256), "CB": (38, 261)})
    assert shapes["ctx_hidden"] == ((1, 33, 128), (2, 64, 128), (8, 256, 128))
    assert shapes["kv_pos"] == ((1, 38), (2, 69), (8, 261))
    assert shapes["past_k_1"] == ((1, 2, 192, 32), (2, 2, 192, 32), (8, 2, 192, 32))
