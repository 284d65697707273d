"""Open the engines of a built directory by its manifest."""

from __future__ import annotations

from pathlib import Path

from .config import Manifest
from .drafts.base import DraftEngine
from .step import LocalStep
from .targets.base import TargetEngine, TargetLimits


def open_target(directory: Path, threads: int = 0, device: int = 0) -> TargetEngine:
    """threads: of a CPU engine, 0 is one per core. device: index of a GPU engine's GPU. Raises `ConfigError`."""
    manifest = Manifest.load(directory)
    limits = TargetLimits(manifest.slots, manifest.context, manifest.rows_per_step)
    if manifest.engine == "tensorrt":
        from .targets.tensorrt import TensorRTTarget

        return TensorRTTarget.open(Path(directory), limits, device)
    if manifest.engine == "tensorrt_llm":
        from .targets.tensorrt_llm import TensorRTLLMTarget

        return TensorRTLLMTarget.open(Path(directory), limits, manifest.tensor_parallel, device)
    from .targets.openvino import OpenVINOTarget

    return OpenVINOTarget(Path(directory), limits, threads)


def open_draft(directory: Path, threads: int = 0, device: int = 0) -> DraftEngine:
    manifest = Manifest.load(directory)
    if manifest.engine in ("tensorrt", "tensorrt_llm"):
        from .drafts.tensorrt import TensorRTDraft

        limits = (manifest.slots, manifest.context, manifest.draft_depth, manifest.rows_per_step)
        return TensorRTDraft.open(Path(directory), *limits, device)
    from .drafts.openvino import OpenVINODraft

    return OpenVINODraft(Path(directory), manifest.slots, manifest.context, manifest.draft_depth, threads)


def open_step(directory: Path, threads: int = 0) -> LocalStep:
    """Both engines in this process."""
    return LocalStep(open_target(directory, threads), open_draft(directory, threads))
