"""The TensorRT-LLM engine's parts: the target's own checkpoint, which the package loads, and the head's TensorRT plan."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.weights import INDEX, checkpoint_files

from . import tensorrt_engine
from .parts import Part
from .texts import texts_part

if TYPE_CHECKING:
    from .engines import Order


def parts(order: Order, target: TargetConfig, head: DraftConfig) -> list[Part]:
    sources = checkpoint_files(order.target)
    if (order.target / INDEX).is_file():
        sources.append(order.target / INDEX)
    sizes = {source.name: source.stat().st_size for source in sources}

    def link_or_copy(out: Path) -> None:
        for source in sources:
            place_file(source, out / source.name)

    checkpoint = Part("target checkpoint", tuple(sources), {"names": list(sizes)}, sizes, link_or_copy)
    stated = {"torch_dtype": order.dtype, "rope_theta": target.rope_theta}  # where the package looks for them
    return [checkpoint, *tensorrt_engine.head_parts(order, target, head), texts_part(order, stated)]


def place_file(source: Path, destination: Path) -> None:
    """A hard link to `source`, or a copy where the two are on different file systems."""
    destination.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), destination)
    except OSError:
        shutil.copyfile(source, destination)


def require(order: Order, target: TargetConfig) -> None:
    """Raises `ConfigError` where the package, the GPU or the model is none that the target runs with."""
    tensorrt_engine.machine()
    import torch
    from jetspec_triton.targets.tensorrt_llm_api import check_device, check_model, check_version

    check_version()
    check_device(torch.cuda.get_device_capability())
    check_model(target, getattr(torch, order.dtype), target.rope_theta)


def serving_bytes(order: Order, target: TargetConfig, head: DraftConfig) -> dict[str, int]:
    """Logits are made of the wanted nodes only."""
    sizes = tensorrt_engine.serving_bytes(order, target, head)
    return {name: size for name, size in sizes.items() if name != "logits"}
