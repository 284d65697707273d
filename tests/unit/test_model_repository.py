"""The rendered repository is the project's own with another engine directory and, on a GPU, other instance settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from jetspec_build.model_repository import CPU, GPU, render_repository
from jetspec_triton.config import Manifest, engine_directory
from jetspec_triton.errors import ConfigError
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

ROOT = Path(__file__).parents[2]
MODELS = {"target", "draft", "jetspec", "jetspec_step", "ensemble"}


def read(repository: Path) -> dict[str, ModelConfig]:
    files = sorted(repository.glob("*/config.pbtxt"))
    return {file.parent.name: text_format.Parse(file.read_text(), ModelConfig()) for file in files}


def render(out: Path, engine: Path, flavour=CPU, rows: int = 64) -> dict[str, ModelConfig]:
    manifest = Manifest("openvino", "t", "h", True, 8, 2048, rows, 3)
    render_repository(ROOT / "model_repository", ROOT / "backends", out, engine, manifest, flavour)
    assert all((out / name / "1").is_dir() for name in MODELS)
    return read(out)


def test_on_the_cpu_only_the_engine_directory_differs(tmp_path):
    mine, own = render(tmp_path / "models", tmp_path / "engine"), read(ROOT / "model_repository")
    assert mine.keys() == own.keys() == MODELS
    for config in mine.values():
        if "engine_directory" in config.parameters:
            config.parameters["engine_directory"].string_value = "../engines/smollm2-135m-instruct"
    assert mine == own


def test_the_models_find_the_engine_and_may_move_with_it(tmp_path):
    configs = render(tmp_path / "out" / "models", tmp_path / "out" / "engine")
    (tmp_path / "out").rename(tmp_path / "moved")
    for name in ("target", "draft", "jetspec"):
        parameters = {"engine_directory": configs[name].parameters["engine_directory"].string_value}
        model = tmp_path / "moved" / "models" / name
        assert engine_directory(parameters, str(model)) == tmp_path / "moved" / "engine"


def test_drafts_and_prompt_chunks_follow_the_rows_of_a_step(tmp_path):
    parameters = render(tmp_path, tmp_path / "e", rows=16)["jetspec"].parameters
    assert (parameters["max_draft"].string_value, parameters["prefill_rows"].string_value) == ("15", "8")


@pytest.mark.parametrize(
    "dtype, triton", [("float16", "TYPE_FP16"), ("bfloat16", "TYPE_BF16"), ("float32", "TYPE_FP32")]
)
def test_hidden_states_have_the_engines_type_on_both_sides(tmp_path, dtype, triton):
    configs = render(tmp_path, tmp_path / "e", GPU._replace(features=dtype))
    types = {
        (name, tensor.name): DataType.Name(tensor.data_type)
        for name in ("target", "draft")
        for tensor in (*configs[name].input, *configs[name].output)
    }
    assert types["target", "features"] == types["draft", "features"] == triton
    assert types["target", "log_probs"] == types["draft", "draft_log_probs"] == "TYPE_FP32"


def test_on_a_gpu_the_engines_take_one_gpu_and_gpu_tensors(tmp_path):
    configs = render(tmp_path, tmp_path / "e", GPU)
    for name in ("target", "draft"):
        group = configs[name].instance_group[0]
        assert (group.kind, group.count, list(group.gpus)) == (GPU.kind, 1, [0])
        assert configs[name].parameters["FORCE_CPU_ONLY_INPUT_TENSORS"].string_value == "no"
    assert configs["jetspec"].instance_group[0].kind == CPU.kind
    assert "FORCE_CPU_ONLY_INPUT_TENSORS" not in configs["jetspec"].parameters


def test_a_missing_backend_or_no_templates_are_refused_by_name(tmp_path):
    manifest = Manifest("openvino", "t", "h", True, 8, 2048, 64, 3)
    with pytest.raises(ConfigError, match="backend jetspec_draft"):
        render_repository(ROOT / "model_repository", tmp_path, tmp_path / "o", tmp_path, manifest, CPU)
    with pytest.raises(ConfigError, match="no model configuration"):
        render_repository(tmp_path, ROOT / "backends", tmp_path / "o", tmp_path, manifest, CPU)
