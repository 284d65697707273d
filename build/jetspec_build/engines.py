"""From a target and a draft head to an engine directory, by a table of engines."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jetspec_triton.checkpoint import DraftConfig, TargetConfig, read_json
from jetspec_triton.config import MANIFEST, Manifest
from jetspec_triton.errors import ConfigError
from jetspec_triton.weights import TARGET_IGNORED, head_shapes, load_weights, target_shapes

from . import openvino_engine, tensorrt_engine, tensorrt_llm_engine
from .model_repository import CPU, GPU, Flavour
from .parts import Part, build_parts


@dataclass(frozen=True)
class Order:
    """What to build. target, head: checkpoint directories. int8: store weights as int8 with one scale per output row, on the
    CPU engine. dtype: of the activations, and of weights that are not int8. The limits are those of `Manifest`.
    """

    target: Path
    head: Path
    engine: str = "openvino"
    int8: bool = True
    dtype: str = "float32"
    slots: int = 8
    context: int = 2048
    rows_per_step: int = 64
    draft_depth: int = 3
    tensor_parallel: int = 1

    @classmethod
    def with_defaults(cls, target: Path, head: Path, engine: str, **given) -> Order:
        """`given` and, for what is None there, the engine's defaults as far as the checkpoints go. Raises `ConfigError`."""
        row = engine_of(engine)
        limits = {"context": cls.context, "draft_depth": cls.draft_depth, **row.defaults}
        limits["context"] = min(limits["context"], TargetConfig.load(target).max_position_embeddings)
        limits["draft_depth"] = min(limits["draft_depth"], DraftConfig.load(head).depth)
        values = limits | {name: value for name, value in given.items() if value is not None}
        if "dtype" not in values:
            stated = stated_dtype(target)
            values["dtype"] = stated if stated in row.dtypes else row.dtypes[-1]
        return cls(target, head, engine, **{"int8": row.int8} | values)

    def manifest(self, **built) -> Manifest:
        limits = (self.slots, self.context, self.rows_per_step, self.draft_depth)
        ranks = {"tensor_parallel": self.tensor_parallel}
        return Manifest(self.engine, self.target.name, self.head.name, self.int8, *limits, **built, **ranks)

    def check(self) -> tuple[TargetConfig, DraftConfig]:
        """Raises `ConfigError` unless the head was made for the target, both are complete and the limits fit them."""
        self._check_precision(engine_of(self.engine))
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

    def _check_precision(self, engine: Engine) -> None:
        if self.dtype not in engine.dtypes:
            raise ConfigError(
                f"dtype is {self.dtype}, {self.engine} computes in {' or '.join(engine.dtypes)}; use one of these"
            )
        if self.int8 and not engine.int8:
            raise ConfigError(
                f"{self.engine} has no int8 weights; order it with a dtype of {' or '.join(engine.dtypes)}"
            )
        if engine.own_dtype and self.dtype != (stated := stated_dtype(self.target)):
            raise ConfigError(
                f"dtype is {self.dtype}, {self.engine} serves a checkpoint in its own, {self.target} states {stated}; "
                f"use a checkpoint of {' or '.join(engine.dtypes)} and no other --dtype"
            )


class Engine(NamedTuple):
    """A row of the table: how an engine is built and served.

    parts: what it consists of. require: raises `ConfigError` where it cannot be built. serving_bytes: weights and caches it
    holds at least. profiles: row counts with a compiled form of their own. libraries: packages whose versions the manifest
    records. device: what it was built for. dtypes: those it computes in. int8: whether it can store weights so. own_dtype:
    whether it takes the checkpoint's. defaults: limits that differ from those of `Order`.
    """

    parts: Callable[[Order, TargetConfig, DraftConfig], list[Part]]
    require: Callable[[Order, TargetConfig], None]
    serving_bytes: Callable[[Order, TargetConfig, DraftConfig], dict[str, int]]
    profiles: Callable[[Order], list[int]]
    libraries: tuple[str, ...]
    device: Callable[[], str]
    flavour: Flavour
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    int8: bool = False
    own_dtype: bool = False
    defaults: Mapping[str, int] = MappingProxyType({"slots": 16, "rows_per_step": 256, "draft_depth": 15})


ENGINES = {
    "openvino": Engine(
        openvino_engine.parts,
        lambda order, target: None,
        openvino_engine.serving_bytes,
        openvino_engine.profiles,
        ("openvino", "onnx", "numpy", "safetensors"),
        lambda: "CPU",
        CPU,
        dtypes=("float32",),
        int8=True,
        defaults={},
    ),
    "tensorrt": Engine(
        tensorrt_engine.parts,
        tensorrt_engine.require,
        tensorrt_engine.serving_bytes,
        tensorrt_engine.profiles,
        ("tensorrt", "torch", "onnx", "numpy", "safetensors"),
        tensorrt_engine.device,
        GPU,
    ),
    "tensorrt_llm": Engine(
        tensorrt_llm_engine.parts,
        tensorrt_llm_engine.require,
        tensorrt_llm_engine.serving_bytes,
        tensorrt_engine.profiles,
        ("tensorrt_llm", "tensorrt", "torch", "onnx", "numpy", "safetensors"),
        tensorrt_engine.device,
        GPU,
        own_dtype=True,
    ),
}


def engine_of(name: str) -> Engine:
    """Raises `ConfigError` for an engine that there is not."""
    if name not in ENGINES:
        raise ConfigError(f"engine {name} is unknown, supported: {', '.join(ENGINES)}; use one of these")
    return ENGINES[name]


def stated_dtype(checkpoint: Path) -> str | None:
    """What `config.json` says of its weights, by either of the names in use."""
    config = read_json(checkpoint / "config.json")
    return config.get("dtype") or config.get("torch_dtype")


def build_engine(order: Order, out: Path, tell: Callable[[str], None] = lambda line: None) -> Manifest:
    """Write the engine directory `out`; what a former run finished from the same inputs is kept. Raises `ConfigError`."""
    target, head = order.check()
    engine = engine_of(order.engine)
    engine.require(order, target)
    parts = engine.parts(order, target, head)
    (out / MANIFEST).unlink(missing_ok=True)
    files = build_parts(parts, out, tell)
    versions = {name: _version(name) for name in engine.libraries} | {"python": platform.python_version()}
    manifest = order.manifest(device=engine.device(), files=files, versions=versions, profiles=engine.profiles(order))
    manifest.save(out)  # last: marks a complete build
    return manifest


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # installed under a name with a CUDA suffix
        return import_module(package).__version__
