"""From a target and a draft head to an engine directory, by a table of engines."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.config import MANIFEST, Manifest
from jetspec_triton.errors import ConfigError
from jetspec_triton.weights import TARGET_IGNORED, head_shapes, load_weights, target_shapes

from . import openvino_engine
from .model_repository import CPU, Flavour
from .parts import Part, build_parts


@dataclass(frozen=True)
class Order:
    """What to build. target, head: checkpoint directories. int8: store weights as int8 with one scale per output row
    (activations stay float32). The limits are those of `Manifest`.
    """

    target: Path
    head: Path
    engine: str = "openvino"
    int8: bool = True
    slots: int = 8
    context: int = 2048
    rows_per_step: int = 64
    draft_depth: int = 3

    def manifest(self, **built) -> Manifest:
        limits = (self.slots, self.context, self.rows_per_step, self.draft_depth)
        return Manifest(self.engine, self.target.name, self.head.name, self.int8, *limits, **built)

    def check(self) -> tuple[TargetConfig, DraftConfig]:
        """Raises `ConfigError` unless the head was made for the target, both are complete and the limits fit them."""
        engine_of(self.engine)
        self.manifest()
        target, head = TargetConfig.load(self.target), DraftConfig.load(self.head)
        head.check_target(target)
        load_weights(self.target, target_shapes(target), TARGET_IGNORED)
        load_weights(self.head, head_shapes(head))
        for name, value, limit, remedy in (
            ("draft_depth", self.draft_depth, head.depth, "the head was trained for"),
            ("context", self.context, target.max_position_embeddings, "the positions that the target knows are"),
            ("slots", self.slots, self.rows_per_step, "every sequence needs a row of a step, rows_per_step is"),
        ):
            if value > limit:
                raise ConfigError(f"{name} is {value}, {remedy} {limit}; lower it")
        return target, head


class Engine(NamedTuple):
    """A row of the table: how an engine is built and served.

    parts: what it consists of. serving_bytes: weights and caches it holds at least. profiles: row counts with a compiled
    form of their own. libraries: packages whose versions the manifest records. device: what it was built for.
    """

    parts: Callable[[Order, TargetConfig, DraftConfig], list[Part]]
    serving_bytes: Callable[[Order, TargetConfig, DraftConfig], dict[str, int]]
    profiles: Callable[[], list[int]]
    libraries: tuple[str, ...]
    device: Callable[[], str]
    flavour: Flavour


ENGINES = {
    "openvino": Engine(
        openvino_engine.parts,
        openvino_engine.serving_bytes,
        openvino_engine.profiles,
        ("openvino", "onnx", "numpy", "safetensors"),
        lambda: "CPU",
        CPU,
    ),
}
NOT_BUILT_HERE = ("tensorrt", "tensorrt_llm")


def engine_of(name: str) -> Engine:
    """Raises `ConfigError` for an engine that this version cannot build."""
    if name not in ENGINES:
        why = "is not built by this version yet" if name in NOT_BUILT_HERE else "is unknown"
        raise ConfigError(f"engine {name} {why}, supported: {', '.join(ENGINES)}; use --engine {next(iter(ENGINES))}")
    return ENGINES[name]


def build_engine(order: Order, out: Path, tell: Callable[[str], None] = lambda line: None) -> Manifest:
    """Write the engine directory `out`; what a former run finished from the same inputs is kept. Raises `ConfigError`."""
    target, head = order.check()
    engine = engine_of(order.engine)
    parts = engine.parts(order, target, head)
    (out / MANIFEST).unlink(missing_ok=True)
    files = build_parts(parts, out, tell)
    versions = {name: version(name) for name in engine.libraries} | {"python": platform.python_version()}
    manifest = order.manifest(device=engine.device(), files=files, versions=versions, profiles=engine.profiles())
    manifest.save(out)  # last: marks a complete build
    return manifest
