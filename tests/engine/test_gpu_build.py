"""`jetspec build` for GPU engines where there is no GPU: planned, refused with the reason, and what it would render."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
from jetspec_build import tensorrt_engine, tensorrt_llm_engine
from jetspec_build.engines import Order, build_engine, engine_of
from jetspec_build.model_repository import GPU
from jetspec_build.plan import ENGINE, Plan
from jetspec_client.cli import main
from jetspec_triton import tensorrt_runtime
from jetspec_triton.checkpoint import TargetConfig
from jetspec_triton.config import PLAN_FACTS, Manifest
from jetspec_triton.engines import open_draft, open_target
from jetspec_triton.errors import ConfigError

from ..unit.byte_level import byte_level
from .built import write_head, write_target

GPU_ENGINES = ("tensorrt", "tensorrt_llm")
HERE = {"tensorrt": "10.16.1", "gpu": "NVIDIA Test", "compute_capability": "9.0"}
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU; tests/gpu covers it")


def write_checkpoints(root: Path, dtype: torch.dtype) -> tuple[Path, Path]:
    write_target(root / "target", tied=False, family="qwen3", dtype=dtype, max_shard_size="100KB")
    byte_level().save(str(root / "target" / "tokenizer.json"))
    write_head(root / "head", draft_vocab=0, layers=2, parent=0)
    return root / "target", root / "head"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> tuple[Path, Path]:
    return write_checkpoints(tmp_path_factory.mktemp("half"), torch.bfloat16)


def build(checkpoints, out: Path, engine: str, *more: str) -> int:
    target, head = map(str, checkpoints)
    return main(["build", "--target", target, "--head", head, "--out", str(out), "--engine", engine, *more])


@pytest.mark.parametrize("engine", GPU_ENGINES)
def test_a_dry_run_needs_no_gpu(checkpoints, tmp_path, capsys, engine):
    assert build(checkpoints, tmp_path / "out", engine, "--dry-run") == 0
    told = capsys.readouterr().out
    for words in (f"engine   {engine}, bfloat16 weights", "16 slots of 512 tokens, 256 rows a step", "draft depth 4"):
        assert words in told
    files = {"draft.plan", PLAN_FACTS, "tokenizer.json", "draft/config.json"}
    files |= {"target.plan"} if engine == "tensorrt" else {"model.safetensors.index.json"}
    assert [name for name in files if f"{tmp_path}/out/{ENGINE}/{name}  " not in told] == []
    assert not (tmp_path / "out").exists()


@without_gpu
@pytest.mark.parametrize("engine", GPU_ENGINES)
def test_a_machine_without_a_gpu_is_told_where_to_build(checkpoints, tmp_path, capsys, engine):
    assert build(checkpoints, tmp_path / "out", engine) == 1
    told = capsys.readouterr()
    assert "compiled where they are served" in told.err and "tensorrt 10.15" in told.err
    assert "machine  cannot build it" in told.out
    assert not (tmp_path / "out").exists()


def test_a_tensorrt_without_in_place_caches_is_refused_with_both_versions(monkeypatch):
    old = types.ModuleType("tensorrt")
    old.__version__, old.LayerType = "10.14.1.48", type("LayerType", (), {})
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="10.14.1.48.*in place.*10.15 or newer"):
        tensorrt_engine.machine()


@pytest.mark.parametrize(
    "engine, more, words",
    [
        ("tensorrt", ["--dtype", "int4"], ["dtype is int4", "float16 or bfloat16"]),
        ("tensorrt", ["--float32"], ["dtype is float32", "float16 or bfloat16"]),
        ("tensorrt", ["--tensor-parallel", "2"], ["tensor_parallel is 2", "tensorrt supports 1", "one GPU"]),
        ("tensorrt_llm", ["--tensor-parallel", "8"], ["tensor_parallel is 8", "tensorrt_llm supports 1", "every rank"]),
        ("tensorrt_llm", ["--dtype", "float16"], ["dtype is float16", "states bfloat16"]),
        ("tensorrt", ["--draft-depth", "5"], ["draft_depth is 5", "4"]),
        ("tensorrt", ["--rows-per-step", "2048"], ["rows_per_step is 2048", "8 to 1024"]),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_else(checkpoints, tmp_path, capsys, engine, more, words):
    assert build(checkpoints, tmp_path / "out", engine, "--dry-run", *more) == 1
    refused = capsys.readouterr().err
    assert [word for word in words if word not in refused] == []


def test_a_float32_checkpoint_is_compiled_in_bfloat16_and_is_none_for_tensorrt_llm(tmp_path, capsys):
    checkpoints = write_checkpoints(tmp_path, torch.float32)
    assert build(checkpoints, tmp_path / "out", "tensorrt", "--dry-run") == 0
    assert "tensorrt, bfloat16 weights" in capsys.readouterr().out
    assert build(checkpoints, tmp_path / "out", "tensorrt_llm", "--dry-run") == 1
    assert "states float32" in capsys.readouterr().err


def test_the_graphs_of_a_plan_part_are_those_of_the_order(checkpoints, tmp_path, monkeypatch):
    """All but compiling: the graphs are written, and their `.plan` goes where the runtime looks."""
    compiled = {}

    def compile_graph(trt, graph):
        compiled[graph.path.name] = (trt, graph.layers, len(graph.profiles), graph.path.is_file())
        return type("Plan", (), {"data": b"plan"})

    monkeypatch.setattr(tensorrt_engine, "machine", lambda: ("trt", HERE))
    monkeypatch.setattr("jetspec_build.tensorrt_graphs.compile_graph", compile_graph)
    order = Order.with_defaults(*checkpoints, "tensorrt", rows_per_step=64)
    plan = Plan.make(order, tmp_path)
    for part in plan.parts:
        part.write(tmp_path)
        assert all((tmp_path / name).is_file() for name in part.files)
    assert compiled == {"target.onnx": ("trt", 3, 2, True), "draft.onnx": ("trt", 2, 2, True)}
    facts = json.loads((tmp_path / PLAN_FACTS).read_text())
    assert facts == {**HERE, "dtype": "bfloat16", "width": 16}
    with pytest.raises(ConfigError, match="NVIDIA Test.*NVIDIA Other"):
        tensorrt_runtime.check_facts(facts, HERE | {"gpu": "NVIDIA Other"}, tmp_path)


def test_another_machine_or_dtype_builds_its_own_plans(checkpoints, monkeypatch):
    def digests(**given) -> list[str]:
        order = Order.with_defaults(*checkpoints, "tensorrt", **given)
        parts = engine_of("tensorrt").parts(order, *order.check())
        return [part.digest({}) for part in parts]

    monkeypatch.setattr(tensorrt_engine, "machine", lambda: (None, HERE))
    first, other_dtype, other_limit = digests(), digests(dtype="float16"), digests(slots=4)
    monkeypatch.setattr(tensorrt_engine, "machine", lambda: (None, HERE | {"tensorrt": "11.0"}))
    assert first[3] == digests()[3] == other_dtype[3]  # the texts
    for others in (other_dtype, other_limit, digests()):
        assert [a == b for a, b in zip(first[:3], others)] == [False] * 3


def test_the_tensorrt_llm_directory_holds_the_checkpoint_once(checkpoints, tmp_path):
    """Linked where that is possible; writing it again does not touch the original."""
    target = Path(shutil.copytree(checkpoints[0], tmp_path / "target"))
    order = Order.with_defaults(target, checkpoints[1], "tensorrt_llm")
    checkpoint = tensorrt_llm_engine.parts(order, *order.check())[0]
    out = tmp_path / "engine"
    out.mkdir()
    for _ in range(2):
        checkpoint.write(out)
    assert len(checkpoint.files) > 2 and "model.safetensors.index.json" in checkpoint.files
    for name, size in checkpoint.files.items():
        assert (out / name).samefile(target / name) and (target / name).stat().st_size == size


def test_the_package_finds_data_type_and_rope_base_where_it_looks(checkpoints, tmp_path):
    """transformers 5 saves them under other names."""
    order = Order.with_defaults(*checkpoints, "tensorrt_llm")
    saved = json.loads((order.target / "config.json").read_text())
    assert "rope_theta" not in saved and "torch_dtype" not in saved
    tensorrt_llm_engine.parts(order, *order.check())[-1].write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {**saved, "torch_dtype": "bfloat16", "rope_theta": 20000.0}
    assert TargetConfig.load(tmp_path) == TargetConfig.load(order.target)


@without_gpu
@pytest.mark.parametrize("engine", GPU_ENGINES)
def test_a_built_directory_is_opened_by_its_manifest(checkpoints, tmp_path, engine):
    order = Order.with_defaults(*checkpoints, engine)
    order.manifest(versions={"tensorrt": "10.16.1"}, device="NVIDIA Test").save(tmp_path)
    assert Manifest.load(tmp_path).tensor_parallel == 1 and engine_of(engine).flavour == GPU
    for name in ("config.json", "draft/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(checkpoints[name.startswith("draft")] / "config.json", tmp_path / name)
    (tmp_path / PLAN_FACTS).write_text(json.dumps({**HERE, "dtype": "bfloat16", "width": 16}))
    with pytest.raises(
        ConfigError, match="tensorrt_llm is not installed" if engine == "tensorrt_llm" else "CUDA device"
    ):
        open_target(tmp_path)
    with pytest.raises(ConfigError, match="draft.plan needs a CUDA device"):
        open_draft(tmp_path)


@without_gpu
def test_nothing_is_written_where_nothing_can_be_compiled(checkpoints, tmp_path):
    with pytest.raises(ConfigError, match="plans are compiled"):
        build_engine(Order.with_defaults(*checkpoints, "tensorrt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
