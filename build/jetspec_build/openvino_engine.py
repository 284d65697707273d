"""The CPU engine's parts: both ONNX graphs with paged attention, and the texts that the server reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.weights import TARGET_IGNORED, checkpoint_files, head_shapes, load_weights, target_shapes

from .graphs.draft_head import write_draft_head
from .graphs.llama import write_target
from .parts import Part, sha256_of

if TYPE_CHECKING:
    from .engines import Order

DRAFT_WIDTH = 16  # candidates per depth that the head returns; sampling weighs them with its noise
GRAPH_BYTES = 5_000  # of the graph file itself, a layer
TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "config.json")


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

    def copy_texts(out: Path) -> None:
        (out / "draft").mkdir(exist_ok=True)
        for name, source in texts.items():
            shutil.copyfile(source, out / name)

    texts = {name: order.target / name for name in TEXTS if (order.target / name).is_file()}
    texts["draft/config.json"] = order.head / "config.json"
    captured = {"layers": list(head.target_layer_ids)}
    return [
        Part("target", target_files, settings | captured, _graph("target", order, target, head), write_target_graph),
        Part(
            "draft head", head_files + target_files, settings, _graph("draft", order, target, head), write_draft_graph
        ),
        Part(
            "tokenizer and configurations",
            tuple(texts.values()),
            {"names": list(texts)},
            {name: path.stat().st_size for name, path in texts.items()},
            copy_texts,
        ),
    ]


def serving_bytes(order: Order, target: TargetConfig, head: DraftConfig) -> dict[str, int]:
    weights = sum(_data_bytes(name, order, target, head) for name in ("target", "draft"))
    rows = order.slots * (order.context + order.rows_per_step)
    caches = sum(2 * c.num_layers * rows * c.num_kv_heads * c.head_dim * 4 for c in (target, head))
    return {"weights": weights, "K/V caches": caches}


def profiles() -> list[int]:
    from jetspec_triton.targets.openvino import STATIC_ROWS

    return list(STATIC_ROWS)


def builder_digest() -> str:
    """Changes when the code that writes the graphs does."""
    sources = Path(__file__).parent
    return sha256_of([*sorted(sources.glob("graphs/*.py")), Path(__file__)])


def _graph(name: str, order: Order, target: TargetConfig, head: DraftConfig) -> dict[str, int]:
    layers = (target if name == "target" else head).num_layers
    return {f"{name}.onnx": GRAPH_BYTES * (layers + 1), f"{name}.onnx.data": _data_bytes(name, order, target, head)}


def _data_bytes(name: str, order: Order, target: TargetConfig, head: DraftConfig) -> int:
    shapes = list((target_shapes(target) if name == "target" else head_shapes(head)).values())
    if name == "draft":  # embedding and LM head are the target's, stored again
        proposed = head.draft_vocab_size or head.vocab_size
        shapes += [(head.vocab_size, head.hidden_size), (proposed, head.hidden_size)]
    size = 0
    for rows, *columns in shapes:
        stored = rows * (columns[0] if columns else 1)
        size += stored + 4 * rows if columns and order.int8 else 4 * stored
    return size
