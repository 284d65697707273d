"""Settings, parsed and checked once: the engine directory's manifest and the parameters of a config.pbtxt."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path

from .errors import ConfigError

MANIFEST = "manifest.json"
PLAN_FACTS = "tensorrt.json"  # what the TensorRT plans of a directory were built with and for
ONE_RANK = {  # why an engine runs on one device
    "openvino": "the CPU engine is one process",
    "tensorrt": "a plan runs on one GPU",
    "tensorrt_llm": "every rank is a process of its own, and a step is sent to one",
}
ENGINES = tuple(ONE_RANK)


@dataclass(frozen=True)
class Manifest:
    """What an engine directory was built for. The target, the draft head and the loop all read this one file.

    slots: sequences decoded at once. context: rows a slot can commit. rows_per_step: nodes of one step, all rows together.
    draft_depth: tokens the head proposes, at most what it was trained for.
    How it was built: device; files: SHA-256 by name in the directory; versions: of the libraries that matter, by package;
    profiles: row counts with a compiled form of their own. tensor_parallel: GPUs that share the target.
    """

    engine: str
    target: str
    head: str
    int8_weights: bool
    slots: int
    context: int
    rows_per_step: int
    draft_depth: int
    device: str = ""
    files: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    profiles: list[int] = field(default_factory=list)
    tensor_parallel: int = 1

    def __post_init__(self):
        if self.engine not in ENGINES:
            raise ConfigError(f"engine is {self.engine!r}, supported are {ENGINES}; rebuild with a supported engine")
        check_tensor_parallel(self.engine, self.tensor_parallel)
        for name, low, high in (
            ("slots", 1, 256),
            ("context", 64, 1 << 20),
            ("rows_per_step", 8, 1024),
            ("draft_depth", 1, 64),
        ):
            value = getattr(self, name)
            if type(value) is not int:
                raise ConfigError(f"{name} is {value!r}, it must be a whole number; rebuild the engine")
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value}, valid is {low} to {high}; rebuild with a value in that range")

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        path = Path(directory) / MANIFEST
        if not path.is_file():
            raise ConfigError(f"{path} does not exist; run `jetspec build` first, it writes it last")
        values = json.loads(path.read_text())
        known = {f.name for f in fields(cls)}
        needed = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
        if not needed <= values.keys() <= known:
            raise ConfigError(
                f"{path} was written by another version (missing: {sorted(needed - values.keys())}, "
                f"unknown: {sorted(values.keys() - known)}); rebuild the engine"
            )
        manifest = cls(**values)
        if missing := [name for name in manifest.files if not (path.parent / name).is_file()]:
            raise ConfigError(f"{path.parent} is incomplete, it lacks {', '.join(missing)}; run `jetspec build` again")
        return manifest

    def save(self, directory: Path) -> None:
        (Path(directory) / MANIFEST).write_text(json.dumps(asdict(self), indent=2) + "\n")


def check_tensor_parallel(engine: str, ranks: int) -> None:
    """Raises `ConfigError` for more ranks than `engine` runs with."""
    if ranks != 1:
        raise ConfigError(
            f"tensor_parallel is {ranks}, {engine} supports 1: {ONE_RANK[engine]}; use a model that fits one device"
        )


@dataclass(frozen=True)
class LoopSettings:
    """Parameters of `model_repository/jetspec/config.pbtxt`."""

    max_queue: int = 64  # requests that may wait for a slot
    prefill_rows: int = 32  # prompt rows in a round that also decodes
    max_draft: int = 63  # most drafted nodes in a round, over all sequences
    default_max_tokens: int = 256

    @classmethod
    def parse(cls, parameters: dict[str, str]) -> LoopSettings:
        """Unknown names are left to the caller; a value that is no whole number or out of range raises `ConfigError`."""
        values = {}
        for name, low in (("max_queue", 1), ("prefill_rows", 1), ("max_draft", 0), ("default_max_tokens", 1)):
            if name in parameters:
                text = parameters[name]
                if not text.isdecimal() or int(text) < low:
                    raise ConfigError(f"parameter {name} is {text!r}, it must be a whole number of at least {low}")
                values[name] = int(text)
        return cls(**values)


def parse_threads(parameters: dict[str, str]) -> int:
    """`threads` of an engine's config.pbtxt; 0 (the default) is one per core this process may use."""
    text = parameters.get("threads", "0")
    if not text.isdecimal():
        raise ConfigError(f"parameter threads is {text!r}, it must be a whole number; 0 means all cores")
    return int(text)


def triton_parameters(model_config: str) -> dict[str, str]:
    """The `parameters` block of a model configuration in JSON, as plain strings."""
    return {name: value["string_value"] for name, value in json.loads(model_config).get("parameters", {}).items()}


def engine_directory(parameters: dict[str, str], model_directory: str) -> Path:
    """`engine_directory` is taken relative to the model repository, the parent of the model's own directory."""
    if "engine_directory" not in parameters:
        raise ConfigError("parameter engine_directory is missing; set it in config.pbtxt")
    return (Path(model_directory).parent / parameters["engine_directory"]).resolve()
