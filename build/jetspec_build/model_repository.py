"""A model repository for one built engine, rendered from the project's own: same models, another engine directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from google.protobuf import text_format
from jetspec_triton.config import Manifest
from jetspec_triton.errors import ConfigError
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

CONFIG = "config.pbtxt"
ENGINE_MODELS = ("target", "draft")


FEATURES = "features"
DATA_TYPES = {"float32": DataType.TYPE_FP32, "float16": DataType.TYPE_FP16, "bfloat16": DataType.TYPE_BF16}


class Flavour(NamedTuple):
    """Where the two engine models run. gpu_tensors: their inputs may stay in GPU memory between them. features: the type of
    the hidden states that the target hands to the head.
    """

    kind: int
    gpu_tensors: bool
    features: str = "float32"


CPU = Flavour(ModelInstanceGroup.KIND_CPU, False)
GPU = Flavour(ModelInstanceGroup.KIND_GPU, True)


def render_repository(
    templates: Path, backends: Path, out: Path, engine: Path, manifest: Manifest, flavour: Flavour
) -> list[Path]:
    """Write `out/<model>/config.pbtxt` and version folders for every model of `templates`; the files written.

    engine: the engine directory; it is named relative to `out`, so both may move together. Raises `ConfigError` when a
    model's backend is not in `backends`.
    """
    written = []
    for template in sorted(templates.glob(f"*/{CONFIG}")):
        name = template.parent.name
        config = text_format.Parse(template.read_text(), ModelConfig())
        if config.backend and not (backends / config.backend / "model.py").is_file():
            raise ConfigError(
                f"model {name} needs the backend {config.backend}, {backends} has none of that name; "
                "install the project as a checkout"
            )
        if "engine_directory" in config.parameters:
            config.parameters["engine_directory"].string_value = os.path.relpath(engine, out)
        if "max_draft" in config.parameters:
            config.parameters["max_draft"].string_value = str(manifest.rows_per_step - 1)
        if "prefill_rows" in config.parameters:
            config.parameters["prefill_rows"].string_value = str(manifest.rows_per_step // 2)
        if name in ENGINE_MODELS:
            config.instance_group[0].kind = flavour.kind
            if flavour.kind == ModelInstanceGroup.KIND_GPU:
                config.instance_group[0].gpus[:] = [0]  # Triton's default is an instance on every GPU
            if flavour.gpu_tensors:
                config.parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value = "no"
            for tensor in (*config.input, *config.output):
                if tensor.name == FEATURES:
                    tensor.data_type = DATA_TYPES[flavour.features]
        path = out / name / CONFIG
        (path.parent / "1").mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"# Written by `jetspec build` for {manifest.target} with head {manifest.head} on {manifest.engine}.\n"
            + text_format.MessageToString(config)
        )
        written.append(path)
    if not written:
        raise ConfigError(f"{templates} holds no model configuration; run from a checkout of the project")
    return written
