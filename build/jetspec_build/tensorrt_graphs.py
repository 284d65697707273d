"""The GPU engines' graphs on disk, with the shapes they are compiled for, and compiling them. Needs torch for its types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import ml_dtypes
import numpy as np
import torch
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.config import Manifest
from jetspec_triton.in_place import Bindings, cache_length, draft_bindings, target_bindings

from .graphs.inplace_draft import write_inplace_draft
from .graphs.inplace_target import write_inplace_target
from .tensorrt_build import Plan, Shapes, compile_plan
from .tensorrt_engine import draft_width, row_ranges

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class GraphFile(NamedTuple):
    """A graph on disk and what compiling it takes."""

    path: Path
    profiles: list[Shapes]
    layers: int


def write_target_graph(
    config: TargetConfig,
    tensors: Mapping[str, np.ndarray],
    capture: tuple[int, ...],
    manifest: Manifest,
    dtype: str,
    out: Path,
) -> GraphFile:
    """The target's graph as `out/target.onnx`, for decoding rounds and for prompt chunks."""
    length, path = cache_length(manifest.context, manifest.rows_per_step), out / "target.onnx"
    write_inplace_target(config, tensors, capture, length, path, dtype=DTYPES[dtype])
    bindings = target_bindings(config, len(capture), length, getattr(torch, dtype))
    sizes = ({"B": (1, manifest.slots), "S": span} for span in row_ranges(manifest.rows_per_step))
    return GraphFile(path, [profile(bindings, s) for s in sizes], config.num_layers)


def write_draft_graph(
    config: DraftConfig,
    tensors: Mapping[str, np.ndarray],
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
        for low, high in row_ranges(rows)
    )
    return GraphFile(path, [profile(bindings, s) for s in sizes], config.num_layers)


def compile_graph(trt: ModuleType, graph: GraphFile, *, ahead_of_time: bool = False) -> Plan:
    """Compile, then drop the graph: the plan holds the weights. Raises `ConfigError`."""
    cache = None if ahead_of_time else graph.path.with_name("timing.cache")  # nothing is timed ahead of time
    plan = compile_plan(trt, graph.path, graph.profiles, graph.layers, timing_cache=cache, ahead_of_time=ahead_of_time)
    graph.path.unlink()
    graph.path.with_suffix(".onnx.data").unlink()
    return plan


def write_plan(trt: ModuleType, graph: GraphFile) -> None:
    """Beside the graph, which goes away."""
    graph.path.with_suffix(".plan").write_bytes(compile_graph(trt, graph).data)


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
