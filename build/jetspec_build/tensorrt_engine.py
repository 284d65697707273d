"""The TensorRT engine's parts: plans compiled on the GPU that serves them, and what they were compiled with.

Imports neither torch nor TensorRT before something is compiled, so that a build can be planned anywhere.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.config import PLAN_FACTS
from jetspec_triton.errors import ConfigError
from jetspec_triton.weights import TARGET_IGNORED, checkpoint_files, head_shapes, load_weights, target_shapes

from .openvino_engine import DRAFT_WIDTH, builder_digest, graph_shapes
from .parts import Part
from .texts import texts_part

if TYPE_CHECKING:
    from .engines import Order

TREE_ROWS = 32  # nodes a slot has at most in a round that only decodes, mostly; more is left to the prompt's profile
LEAST = "10.15"  # the first TensorRT that updates caches in place
KERNEL_BYTES = 16_000_000  # of a plan beside its weights
FACTS_BYTES = 250
_BUILDERS = ("tensorrt_engine.py", "tensorrt_graphs.py", "tensorrt_build.py")


def parts(order: Order, target: TargetConfig, head: DraftConfig) -> list[Part]:
    def write_target_plan(out: Path) -> None:
        from .tensorrt_graphs import write_plan, write_target_graph

        tensors = load_weights(order.target, target_shapes(target), TARGET_IGNORED)
        manifest = order.manifest()
        write_plan(machine()[0], write_target_graph(target, tensors, head.target_layer_ids, manifest, order.dtype, out))

    settings = plan_settings(order) | {"layers": list(head.target_layer_ids)}
    inputs = (order.target / "config.json", *checkpoint_files(order.target))
    files = {"target.plan": plan_bytes("target", target, head)}
    return [
        Part(
            "target plan", inputs, settings, files, write_target_plan, temporary=_weight_bytes("target", target, head)
        ),
        *head_parts(order, target, head),
        texts_part(order),
    ]


def head_parts(order: Order, target: TargetConfig, head: DraftConfig) -> list[Part]:
    """The draft head's plan, and what the plans of the directory were compiled with."""

    def write_draft_plan(out: Path) -> None:
        from .tensorrt_graphs import write_draft_graph, write_plan

        of_target = load_weights(order.target, target_shapes(target), TARGET_IGNORED)
        embedding = of_target["embed_tokens.weight"]
        lm_head = embedding if target.tie_word_embeddings else of_target["lm_head.weight"]
        tensors = load_weights(order.head, head_shapes(head))
        write_plan(
            machine()[0], write_draft_graph(head, tensors, embedding, lm_head, order.manifest(), order.dtype, out)
        )

    def write_facts(out: Path) -> None:
        facts = {**machine()[1], "dtype": order.dtype, "width": draft_width(head)}
        (out / PLAN_FACTS).write_text(json.dumps(facts, indent=2) + "\n")

    settings = plan_settings(order)
    of_target = (order.target / "config.json", *checkpoint_files(order.target))
    inputs = (order.head / "config.json", *checkpoint_files(order.head), *of_target)
    files = {"draft.plan": plan_bytes("draft", target, head)}
    temporary = _weight_bytes("draft", target, head)
    return [
        Part("draft head plan", inputs, settings, files, write_draft_plan, temporary),
        Part("facts of the plans", (order.head / "config.json",), settings, {PLAN_FACTS: FACTS_BYTES}, write_facts),
    ]


def plan_settings(order: Order) -> dict:
    """What decides a plan beside the weights. Without a GPU its part is empty: nothing is compiled there."""
    try:
        here = machine()[1]
    except ConfigError:
        here = {}
    limits = [order.slots, order.context, order.rows_per_step, order.draft_depth]
    return {"dtype": order.dtype, "limits": limits, "machine": here, "builder": builder_digest(_BUILDERS)}


def machine() -> tuple[ModuleType, dict[str, str]]:
    """The `tensorrt` module, and what plans depend on here. Raises `ConfigError` where none can be compiled."""
    where = f"plans are compiled where they are served: build there, with torch for CUDA and tensorrt {LEAST} or newer"
    try:
        import tensorrt
        import torch
    except ImportError as error:
        raise ConfigError(f"{error}; {where}") from None
    if not torch.cuda.is_available():
        raise ConfigError(f"torch {torch.__version__} sees no CUDA device; {where}")
    if not hasattr(tensorrt.LayerType, "KV_CACHE_UPDATE"):
        raise ConfigError(f"tensorrt {tensorrt.__version__} cannot update a cache in place; {where}")
    from jetspec_triton.tensorrt_runtime import this_machine

    return tensorrt, this_machine(tensorrt)


def require(order: Order, target: TargetConfig) -> None:
    machine()


def device() -> str:
    return machine()[1]["gpu"]


def profiles(order: Order) -> list[int]:
    return [most for _, most in row_ranges(order.rows_per_step)]


def serving_bytes(order: Order, target: TargetConfig, head: DraftConfig) -> dict[str, int]:
    rows = order.slots * (order.context + order.rows_per_step)
    caches = sum(2 * c.num_layers * rows * c.num_kv_heads * c.head_dim * 2 for c in (target, head))
    logits = order.slots * order.rows_per_step * target.vocab_size * 2
    weights = sum(_weight_bytes(name, target, head) for name in ("target", "draft"))
    return {"weights": weights, "K/V caches": caches, "logits": logits}


def draft_width(head: DraftConfig) -> int:
    return min(DRAFT_WIDTH, head.draft_vocab_size or head.vocab_size)


def row_ranges(most: int) -> list[tuple[int, int]]:
    """Rows of a slot in a decoding round, then in a round with a chunk of a prompt."""
    return [(1, TREE_ROWS), (TREE_ROWS + 1, most)] if TREE_ROWS < most else [(1, most)]


def plan_bytes(name: str, target: TargetConfig, head: DraftConfig) -> int:
    return _weight_bytes(name, target, head) + KERNEL_BYTES


def _weight_bytes(name: str, target: TargetConfig, head: DraftConfig) -> int:
    return sum(2 * prod(shape) for shape in graph_shapes(name, target, head))
