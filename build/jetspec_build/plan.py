"""`jetspec build`: what will be written, how much it takes, and the build itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import NamedTuple

from jetspec_triton.chat import PromptEncoder
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.errors import ConfigError
from jetspec_triton.weights import head_shapes, target_shapes

from .engines import Order, build_engine, engine_of
from .model_repository import render_repository
from .parts import Part, size_text

ENGINE, REPOSITORY = "engine", "model_repository"  # below the output folder


class Plan(NamedTuple):
    order: Order
    out: Path
    target: TargetConfig
    head: DraftConfig
    parts: list[Part]

    @classmethod
    def make(cls, order: Order, out: Path) -> Plan:
        """Checks both checkpoints without reading their weights. Raises `ConfigError`."""
        target, head = order.check()
        for name, source in (("target", order.target), ("head", order.head)):
            if source.resolve() in ((out / ENGINE).resolve(), (out / ENGINE / "draft").resolve()):
                raise ConfigError(f"--out {out} would write over the {name} {source}; choose another --out")
        existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise ConfigError(f"--out {out} cannot be made, {existing} is a file; choose another --out")
        PromptEncoder(order.target, order.context)  # the server refuses what this does
        return cls(order, out, target, head, engine_of(order.engine).parts(order, target, head))

    @property
    def disk_bytes(self) -> int:
        """Still to be written, estimated: files that are already there are written over."""
        engine = self.out / ENGINE
        there = sum((engine / n).stat().st_size for p in self.parts for n in p.files if (engine / n).is_file())
        return max(sum(part.size for part in self.parts) + max(part.temporary for part in self.parts) - there, 0)

    @property
    def free_bytes(self) -> int:
        existing = next(folder for folder in (self.out, *self.out.resolve().parents) if folder.is_dir())
        return shutil.disk_usage(existing).free

    def require_disk(self) -> None:
        if self.disk_bytes > self.free_bytes:
            raise ConfigError(
                f"the build needs {size_text(self.disk_bytes)} in {self.out}, {size_text(self.free_bytes)} are free; "
                "make room or choose another --out"
            )

    def describe(self) -> str:
        """The plan for a person. Memory to build leaves out the checkpoint's mapped pages, which the system can drop."""
        order, target, head = self.order, self.target, self.head
        largest = max(prod(shape) for shape in (target_shapes(target) | head_shapes(head)).values())
        building = 2 * max(part.size for part in self.parts) + 4 * 4 * largest
        serving = engine_of(order.engine).serving_bytes(order, target, head)
        lines = [
            f"engine   {order.engine}, {'int8' if order.int8 else order.dtype} weights",
            f"target   {order.target.name}: {target.model_type}, {target.num_layers} layers of {target.hidden_size}, "
            f"{target.num_heads} heads on {target.num_kv_heads}, vocabulary {target.vocab_size}",
            f"head     {order.head.name}: {head.num_layers} layers, depth {head.depth}, "
            f"reads layers {', '.join(map(str, head.target_layer_ids))}, "
            f"proposes {head.draft_vocab_size or head.vocab_size} tokens",
            f"limits   {order.slots} slots of {order.context} tokens, {order.rows_per_step} rows a step, "
            f"draft depth {order.draft_depth}",
            f"disk     about {size_text(self.disk_bytes)} to write, {size_text(self.free_bytes)} free",
            f"memory   about {size_text(building)} to build; to serve at least {size_text(sum(serving.values()))}: "
            + ", ".join(f"{name} {size_text(size)}" for name, size in serving.items()),
            f"machine  {self.obstacle() or 'can build it'}",
            "steps",
        ]
        for number, part in enumerate(self.parts, 1):
            lines.append(f"  {number}. {part.name}")
            lines += [f"       {self.out / ENGINE / name}  {size_text(size)}" for name, size in part.files.items()]
        lines.append(f"then     the model repository {self.out / REPOSITORY}")
        return "\n".join(lines)

    def obstacle(self) -> str:
        """Why this machine cannot build it; empty when it can."""
        try:
            engine_of(self.order.engine).require(self.order, self.target)
        except ConfigError as error:
            return f"cannot build it: {error}"
        return ""

    def run(self, project: Path, tell: Callable[[str], None]) -> Path:
        """Build what is missing and render the repository from `project`'s own. The repository's path."""
        self.require_disk()
        engine, repository = self.out / ENGINE, self.out / REPOSITORY
        manifest = build_engine(self.order, engine, tell)
        flavour = engine_of(self.order.engine).flavour._replace(features=self.order.dtype)
        render_repository(project / REPOSITORY, project / "backends", repository, engine, manifest, flavour)
        tell(f"model repository: written to {repository}")
        return repository
