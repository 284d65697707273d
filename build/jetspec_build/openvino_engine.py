"""The CPU engine's parts: both ONNX graphs with paged attention, and the texts that the server reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.weights import TARGET_IGNORED, checkpoint_files, head_shapes, load_weights, target_shapes

from .graphs.draft_head import write_draft_head
from .graphs.llama import write_target
from .parts import Part, sha256_of
from .texts import texts_part

if TYPE_CHECKING:
    from .engines import Order

DRAFT_WIDTH = 16  # candidates per depth that the head returns; sampling weighs them with its noise
GRAPH_BYTES = 5_000  # of the graph file itself, a layer


def parts(order: Order, target: TargetConfig, head: DraftConfig) -> list[Part]:
    settings = {"int8": order.int8, "builder": builder_digest()}
    target_files = (order.target / "config.json", *checkpoint_files(order.target))
    head_files = (order.head / "config.json", *checkpoint_files(order.head))

    def write_target_graph(out: Path) -> None:
        tensors = load_weights(order.target, target_shapes(target), TARGET_IGNORED)
        write_target(target, tensors, head.target_layer_ids, out / "target.onnx", int8=order.int8)

    def write_draft_graph(out: Path) -> None:
        of_target = load_weights(order.target, target_shapes(target), TARGET_IGNORED)
        embedding = of_target["embed_tokens.weight"]
        lm_head = embedding if target.tie_word_embeddings else of_target["lm_head.weight"]
        tensors = load_weights(order.head, head_shapes(head))
        write_draft_head(head, tensors, embedding, lm_head, DRAFT_WIDTH, out / "draft.onnx", int8=order.int8)

    captured = {"layers": list(head.target_layer_ids)}
    return [
        Part("target", target_files, settings | captured, _graph("target", order, target, head), write_target_graph),
        Part(
            "draft head", head_files + target_files, settings, _graph("draft", order, target, head), write_draft_graph
        ),
        texts_part(order),
    ]


def serving_bytes(order: Order, target: TargetConfig, head: DraftConfig) -> dict[str, int]:
    weights = sum(_data_bytes(name, order, target, head) for name in ("target", "draft"))
    rows = order.slots * (order.context + order.rows_per_step)
    caches = sum(2 * c.num_layers * rows * c.num_kv_heads * c.head_dim * 4 for c in (target, head))
    return {"weights": weights, "K/V caches": caches}


def profiles(order: Order) -> list[int]:
    from jetspec_triton.targets.openvino import STATIC_ROWS

    return list(STATIC_ROWS)


def builder_digest(builders: tuple[str, ...] = ("openvino_engine.py",)) -> str:
    """Changes when the code that writes the graphs does. builders: the files of this folder that matter beside them."""
    sources = Path(__file__).parent
    return sha256_of([*sorted(sources.glob("graphs/*.py")), *(sources / name for name in builders)])


def graph_shapes(name: str, target: TargetConfig, head: DraftConfig) -> list[tuple[int, ...]]:
    """Of the weights in the graph "target" or "draft"."""
    if name == "target":
        return list(target_shapes(target).values())
    proposed = head.draft_vocab_size or head.vocab_size  # embedding and LM head are the target's, stored again
    return [*head_shapes(head).values(), (head.vocab_size, head.hidden_size), (proposed, head.hidden_size)]


def _graph(name: str, order: Order, target: TargetConfig, head: DraftConfig) -> dict[str, int]:
    layers = (target if name == "target" else head).num_layers
    return {f"{name}.onnx": GRAPH_BYTES * (layers + 1), f"{name}.onnx.data": _data_bytes(name, order, target, head)}


def _data_bytes(name: str, order: Order, target: TargetConfig, head: DraftConfig) -> int:
    size = 0
    for rows, *columns in graph_shapes(name, target, head):
        stored = rows * (columns[0] if columns else 1)
        size += stored + 4 * rows if columns and order.int8 else 4 * stored
    return size
