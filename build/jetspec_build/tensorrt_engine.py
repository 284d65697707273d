"""From a target and a draft head to a directory that the TensorRT engine serves on the GPU it was built on."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import ml_dtypes
import numpy as np
import torch
from jetspec_triton.checkpoint import DraftConfig, TargetConfig, load_tensors
from jetspec_triton.config import Manifest
from jetspec_triton.errors import ConfigError
from jetspec_triton.in_place import Bindings, cache_length, draft_bindings, target_bindings
from jetspec_triton.tensorrt_runtime import BUILD_FACTS, this_machine

from .engines import DRAFT_WIDTH, begin_build, finish_build
from .graphs.inplace_draft import write_inplace_draft
from .graphs.inplace_target import write_inplace_target
from .tensorrt_build import Plan, Shapes, compile_plan

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TREE_ROWS = 32  # nodes a slot has at most in a round that only decodes, mostly; more is left to the prompt's profile


def build_tensorrt(
    target: Path,
    head: Path,
    out: Path,
    *,
    dtype: str = "bfloat16",
    slots: int = 16,
    context: int = 2048,
    rows_per_step: int = 256,
    draft_depth: int = 15,
) -> None:
    """Write `out/`: both plans, both configurations, the tokenizer and the chat template.

    dtype: of weights, activations and caches. The limits are those of `Manifest`; a slot's cache has the static length that
    holds `context`, and attention costs as much. Raises `ConfigError` when the head was not made for the target, a limit is
    out of range or a graph does not compile.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, supported are {', '.join(DTYPES)}")
    import tensorrt as trt

    manifest = Manifest("tensorrt", target.name, head.name, False, slots, context, rows_per_step, draft_depth)
    config, draft_config = begin_build(manifest, target, head, out)
    machine = this_machine(trt)
    tensors = {name.removeprefix("model."): array for name, array in load_tensors(target).items()}
    embedding, lm_head = tensors["embed_tokens.weight"], tensors.get("lm_head.weight", tensors["embed_tokens.weight"])
    graphs = [
        write_target_graph(config, tensors, draft_config.target_layer_ids, manifest, dtype, out),
        write_draft_graph(draft_config, load_tensors(head), embedding, lm_head, manifest, dtype, out),
    ]
    del tensors, embedding, lm_head  # compiling needs the memory
    for graph in graphs:
        graph.path.with_suffix(".plan").write_bytes(compile_graph(trt, graph).data)
    width = draft_width(draft_config)
    (out / BUILD_FACTS).write_text(json.dumps({**machine, "dtype": dtype, "width": width}, indent=2) + "\n")
    finish_build(manifest, target, head, out)


class GraphFile(NamedTuple):
    """A graph on disk and what compiling it takes."""

    path: Path
    profiles: list[Shapes]
    layers: int


def draft_width(config: DraftConfig) -> int:
    return min(DRAFT_WIDTH, config.draft_vocab_size or config.vocab_size)


def write_target_graph(
    config: TargetConfig,
    tensors: dict[str, np.ndarray],
    capture: tuple[int, ...],
    manifest: Manifest,
    dtype: str,
    out: Path,
) -> GraphFile:
    """The target's graph as `out/target.onnx`, for decoding rounds and for prompt chunks."""
    length, path = cache_length(manifest.context, manifest.rows_per_step), out / "target.onnx"
    write_inplace_target(config, tensors, capture, length, path, dtype=DTYPES[dtype])
    bindings = target_bindings(config, len(capture), length, getattr(torch, dtype))
    sizes = ({"B": (1, manifest.slots), "S": span} for span in row_ranges(TREE_ROWS, manifest.rows_per_step))
    return GraphFile(path, [profile(bindings, s) for s in sizes], config.num_layers)


def write_draft_graph(
    config: DraftConfig,
    tensors: dict[str, np.ndarray],
    embedding: np.ndarray,
    lm_head: np.ndarray,
    manifest: Manifest,
    dtype: str,
    out: Path,
) -> GraphFile:
    """The head's graph as `out/draft.onnx`, likewise."""
    depth, width, path = manifest.draft_depth, draft_width(config), out / "draft.onnx"
    block, rows = depth + 1, manifest.rows_per_step
    length = cache_length(manifest.context, rows, block)
    write_inplace_draft(config, tensors, embedding, lm_head, width, depth, length, path, dtype=DTYPES[dtype])
    bindings = draft_bindings(config, depth, width, length, getattr(torch, dtype))
    sizes = (
        {"B": (1, manifest.slots), "C": (low, high), "CB": (low + block, high + block)}
        for low, high in row_ranges(TREE_ROWS, rows)
    )
    return GraphFile(path, [profile(bindings, s) for s in sizes], config.num_layers)


def compile_graph(trt: ModuleType, graph: GraphFile, *, ahead_of_time: bool = False) -> Plan:
    """Compile, then drop the graph: the plan holds the weights. Raises `ConfigError`."""
    cache = None if ahead_of_time else graph.path.with_name("timing.cache")  # nothing is timed ahead of time
    plan = compile_plan(trt, graph.path, graph.profiles, graph.layers, timing_cache=cache, ahead_of_time=ahead_of_time)
    graph.path.unlink()
    graph.path.with_suffix(".onnx.data").unlink()
    return plan


def row_ranges(tree: int, most: int) -> list[tuple[int, int]]:
    """Rows of a slot in a decoding round, then in a round with a chunk of a prompt."""
    return [(1, tree), (tree + 1, most)] if tree < most else [(1, most)]


def profile(bindings: Bindings, sizes: dict[str, tuple[int, int]]) -> Shapes:
    """Smallest, typical and largest shape of every input when the named dimensions take `sizes`.

    A step is typically a quarter of its largest: kernels are chosen there.
    """
    typical = {name: max(low, high // 4) for name, (low, high) in sizes.items()}
    if "CB" in sizes:
        typical["CB"] = typical["C"] + sizes["CB"][0] - sizes["C"][0]
    corners = ({n: low for n, (low, _) in sizes.items()}, typical, {n: high for n, (_, high) in sizes.items()})
    inputs = {**bindings.inputs, **{name: bindings.cache for name in bindings.caches}}
    return {name: tuple(binding.sized(corner) for corner in corners) for name, binding in inputs.items()}
