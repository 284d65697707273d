"""What the server reads of a target beside its weights: tokenizer, chat template, configurations; and the head's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from .parts import Part

if TYPE_CHECKING:
    from .engines import Order

TEXTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "config.json")


def texts_part(order: Order) -> Part:
    texts = {name: order.target / name for name in TEXTS if (order.target / name).is_file()}
    texts["draft/config.json"] = order.head / "config.json"

    def copy(out: Path) -> None:
        (out / "draft").mkdir(exist_ok=True)
        for name, source in texts.items():
            shutil.copyfile(source, out / name)

    sizes = {name: path.stat().st_size for name, path in texts.items()}
    return Part("tokenizer and configurations", tuple(texts.values()), {"names": list(texts)}, sizes, copy)
