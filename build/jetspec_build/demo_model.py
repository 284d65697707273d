"""The set-up of the demo: fetch and import the model, build its engine with the shipped head. Quick when done."""

from __future__ import annotations

from pathlib import Path

from jetspec_triton.config import MANIFEST

from .engines import Order, build_engine
from .gguf_import import download_demo_gguf, import_gguf
from .openvino_engine import builder_digest
from .parts import sha256_of

NAME = "smollm2-135m-instruct"


def set_up(root: Path) -> None:
    """Make `models/` and `engines/` under `root`; rebuilds the engine when the head or a graph builder changed."""
    model, head, engine = root / "models" / NAME, root / "build" / "heads" / NAME, root / "engines" / NAME
    if not (model / "config.json").is_file():
        print("fetching SmolLM2-135M-Instruct (Apache-2.0, 93 MB) ...", flush=True)
        file = download_demo_gguf(root / ".cache")
        print("importing its weights, tokenizer and chat template ...", flush=True)
        import_gguf(file, model)
    stamp, fingerprint = engine / "fingerprint", builder_digest() + sha256_of(sorted(head.glob("*.*")))
    if (engine / MANIFEST).is_file() and stamp.is_file() and stamp.read_text() == fingerprint:
        return
    print("building the target's and the draft head's graphs with int8 weights ...", flush=True)
    build_engine(Order(model, head), engine)
    stamp.write_text(fingerprint)
