"""What the server reads of a target beside its weights: tokenizer, chat template, configurations; and the head's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jetspec_triton.checkpoint import read_json

from .parts import Part

if TYPE_CHECKING:
    from .engines import Order

TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "config.json")


def texts_part(order: Order, stated: Mapping[str, object] | None = None) -> Part:
    """stated: what the target's `config.json` is to say besides."""
    texts = {name: order.target / name for name in TEXTS if (order.target / name).is_file()}
    texts["draft/config.json"] = order.head / "config.json"

    def copy(out: Path) -> None:
        (out / "draft").mkdir(exist_ok=True)
        for name, source in texts.items():
            shutil.copyfile(source, out / name)
        if stated:
            config = read_json(order.target / "config.json")
            (out / "config.json").write_text(json.dumps({**config, **stated}, indent=2) + "\n")

    settings = {"names": list(texts), "stated": dict(stated or {})}
    sizes = {name: path.stat().st_size for name, path in texts.items()}
    return Part("tokenizer and configurations", tuple(texts.values()), settings, sizes, copy)
