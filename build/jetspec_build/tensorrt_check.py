"""Prove without a GPU that the GPU graphs compile: TensorRT-RTX builds them ahead of time, layer counts asserted.

Built are both graphs of the demo model, and the draft head of Qwen3-8B's shape with random weights. Nothing is run.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import tensorrt_rtx as trt
import torch
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.config import Manifest
from jetspec_triton.errors import ConfigError
from jetspec_triton.weights import head_shapes, load_tensors

from .tensorrt_graphs import GraphFile, compile_graph, write_draft_graph, write_target_graph

QWEN3_8B_HEAD = DraftConfig(
    hidden_size=4096,
    intermediate_size=12288,
    num_layers=5,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=151936,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    block_size=16,
    target_layer_ids=(1, 9, 17, 25, 33),
    num_target_layers=36,
    mask_token_id=151669,
)
DTYPE = "float16"


def demo_graphs(model: Path, head: Path, work: Path) -> dict[str, GraphFile]:
    config, draft_config = TargetConfig.load(model), DraftConfig.load(head)
    tensors = load_tensors(model)
    manifest = Manifest("tensorrt", model.name, head.name, False, 8, 1024, 128, draft_config.depth)
    embedding = tensors["embed_tokens.weight"]
    lm_head = tensors.get("lm_head.weight", embedding)
    target = write_target_graph(config, tensors, draft_config.target_layer_ids, manifest, DTYPE, work)
    draft = write_draft_graph(draft_config, load_tensors(head), embedding, lm_head, manifest, DTYPE, work)
    return {f"{model.name}, target": target, f"{model.name}, draft head": draft}


def qwen3_8b_head(work: Path) -> dict[str, GraphFile]:
    """Random weights from a fixed seed; the real head's own are not needed to compile its shape."""
    config, generator = QWEN3_8B_HEAD, torch.Generator().manual_seed(0)

    def random(shape: tuple[int, ...]):
        return torch.empty(shape, dtype=torch.float16).normal_(0, 0.02, generator=generator).numpy()

    tensors = {name: random(shape) for name, shape in head_shapes(config).items()}
    table = (config.vocab_size, config.hidden_size)
    manifest = Manifest("tensorrt", "Qwen3-8B", "random", False, 8, 2048, 256, config.depth)
    return {
        "Qwen3-8B shape, draft head": write_draft_graph(
            config, tensors, random(table), random(table), manifest, DTYPE, work
        )
    }


def check(name: str, graph: GraphFile) -> dict:
    started = time.perf_counter()
    plan = compile_graph(trt, graph, ahead_of_time=True)
    result = {
        "graph": name,
        "decoder_layers": graph.layers,
        **plan.layers._asdict(),
        "seconds": round(time.perf_counter() - started, 1),
        "plan_bytes": plan.data.nbytes,
    }
    print(
        f"{name}: {graph.layers} layers -> {result['cache_updates']} cache updates, {result['attentions']} fused "
        f"attentions; {result['seconds']} s, {plan.data.nbytes / 1e6:.0f} MB",
        flush=True,
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m-instruct"))
    parser.add_argument("--head", type=Path, default=Path("build/heads/smollm2-135m-instruct"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/trt_check.json"))
    args = parser.parse_args()
    print(f"TensorRT-RTX {trt.__version__}, {DTYPE}, ahead of time for SM 8.0; nothing is run", flush=True)
    results = []
    try:
        Path(".cache").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="trt-check-", dir=".cache") as work:  # 5 GB
            for name, graph in demo_graphs(args.model, args.head, Path(work)).items():
                results.append(check(name, graph))
            for name, graph in qwen3_8b_head(Path(work)).items():
                results.append(check(name, graph))
    except ConfigError as error:
        sys.exit(f"trt-check failed: {error}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report = {
        "tensorrt_rtx": trt.__version__,
        "dtype": DTYPE,
        "target": "SM 8.0",
        "peak_bytes": peak,
        "graphs": results,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"all compile; peak memory {peak / 1e9:.1f} GB; written to {args.out}")


if __name__ == "__main__":
    main()
