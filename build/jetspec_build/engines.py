"""From a target and a draft head to a directory that the CPU engine serves."""

from __future__ import annotations

import shutil
from pathlib import Path

from jetspec_triton.checkpoint import DraftConfig, TargetConfig, load_tensors
from jetspec_triton.config import MANIFEST, Manifest
from jetspec_triton.errors import ConfigError

from .graphs.draft_head import write_draft_head
from .graphs.llama import write_target

DRAFT_WIDTH = 8  # candidates per depth that the head returns; sampling re-ranks them with its noise


def build_openvino(
    target: Path,
    head: Path,
    out: Path,
    *,
    int8: bool = True,
    slots: int = 8,
    context: int = 2048,
    rows_per_step: int = 64,
    draft_depth: int = 3,
) -> None:
    """Write `out/`: both graphs, both configurations, the tokenizer and the chat template.

    int8: store weights as int8 with one scale per output row (activations stay float32). The limits are those of
    `Manifest`. Raises `ConfigError` when the head was not made for the target or a limit is out of range.
    """
    manifest = Manifest("openvino", target.name, head.name, int8, slots, context, rows_per_step, draft_depth)
    config, draft_config = begin_build(manifest, target, head, out)
    tensors = {name.removeprefix("model."): array for name, array in load_tensors(target).items()}
    write_target(config, tensors, draft_config.target_layer_ids, out / "target.onnx", int8=int8)
    embedding = tensors["embed_tokens.weight"]
    lm_head = tensors.get("lm_head.weight", embedding)
    write_draft_head(draft_config, load_tensors(head), embedding, lm_head, DRAFT_WIDTH, out / "draft.onnx", int8=int8)
    finish_build(manifest, target, head, out)


def begin_build(manifest: Manifest, target: Path, head: Path, out: Path) -> tuple[TargetConfig, DraftConfig]:
    """Check that the pair and the limits fit; make `out`, which is incomplete from here to `finish_build`."""
    config, draft_config = TargetConfig.load(target), DraftConfig.load(head)
    draft_config.check_target(config)
    if manifest.draft_depth > draft_config.depth:
        raise ConfigError(
            f"draft_depth is {manifest.draft_depth}, the head was trained for {draft_config.depth}; lower it"
        )
    if manifest.context > config.max_position_embeddings:
        raise ConfigError(
            f"context is {manifest.context}, the target knows {config.max_position_embeddings} positions; lower it"
        )
    (out / "draft").mkdir(parents=True, exist_ok=True)
    (out / MANIFEST).unlink(missing_ok=True)
    return config, draft_config


def finish_build(manifest: Manifest, target: Path, head: Path, out: Path) -> None:
    """Copy both configurations, the tokenizer and the chat template; the manifest, last, marks a complete build."""
    for name in ("tokenizer.json", "chat_template.jinja"):
        if (target / name).is_file():
            shutil.copyfile(target / name, out / name)
    shutil.copyfile(head / "config.json", out / "draft" / "config.json")
    shutil.copyfile(target / "config.json", out / "config.json")
    manifest.save(out)
