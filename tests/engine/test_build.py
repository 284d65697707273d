"""`jetspec build`: the plan, what it refuses before it writes, and that it goes on where it stopped."""

from __future__ import annotations

import json
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from jetspec_build import openvino_engine
from jetspec_build.engines import Order
from jetspec_build.plan import ENGINE, Plan
from jetspec_client.cli import main
from jetspec_triton.config import Manifest
from jetspec_triton.errors import ConfigError

from ..unit.byte_level import byte_level
from .built import write_head, write_target

LIMITS = ["--slots", "4", "--context", "96", "--rows-per-step", "40", "--draft-depth", "4"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    write_target(root / "target", tied=False, family="qwen3")
    byte_level().save(str(root / "target" / "tokenizer.json"))
    write_head(root / "head", draft_vocab=0, layers=5)
    return root / "target", root / "head"


def build(checkpoints, out: Path, *more: str) -> int:
    target, head = map(str, checkpoints)
    return main(["build", "--target", target, "--head", head, "--out", str(out), *LIMITS, *more])


@pytest.mark.parametrize("precision", [[], ["--float32"]], ids=["int8", "float32"])
def test_the_estimate_is_what_is_written(checkpoints, tmp_path, precision):
    assert build(checkpoints, tmp_path, *precision) == 0
    order = Order(*checkpoints, int8=not precision, slots=4, context=96, rows_per_step=40, draft_depth=4)
    for part in Plan.make(order, tmp_path / "elsewhere").parts:
        written = sum((tmp_path / ENGINE / name).stat().st_size for name in part.files)
        assert written == pytest.approx(part.size, rel=0.1)  # of so small a model the graphs themselves are a part


def test_the_manifest_says_how_it_was_built(checkpoints, tmp_path):
    assert build(checkpoints, tmp_path) == 0
    manifest = Manifest.load(tmp_path / ENGINE)
    assert (manifest.slots, manifest.context, manifest.rows_per_step, manifest.draft_depth) == (4, 96, 40, 4)
    assert (manifest.device, manifest.profiles) == ("CPU", [1, 2, 4])
    assert {"target.onnx.data", "draft.onnx.data", "tokenizer.json", "draft/config.json"} <= manifest.files.keys()
    assert {"openvino", "onnx", "python"} <= manifest.versions.keys()
    (tmp_path / ENGINE / "draft.onnx.data").unlink()
    with pytest.raises(ConfigError, match="lacks draft.onnx.data"):
        Manifest.load(tmp_path / ENGINE)


def test_a_dry_run_tells_and_writes_nothing(checkpoints, tmp_path, capsys):
    assert build(checkpoints, tmp_path / "out", "--dry-run") == 0
    told = capsys.readouterr().out
    for words in (
        "qwen3, 3 layers",
        "5 layers, depth 4",
        "proposes 96 tokens",
        "4 slots of 96 tokens",
        "target.onnx.data",
    ):
        assert words in told
    assert "free" in told and "K/V caches" in told
    assert not (tmp_path / "out").exists()


def test_a_stopped_build_goes_on(checkpoints, tmp_path, capsys, monkeypatch):
    def stop(*args, **options):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(openvino_engine, "write_draft_head", stop)
        assert build(checkpoints, tmp_path) == 1
    assert "no space left" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="jetspec build"):  # no manifest: not taken for complete
        Manifest.load(tmp_path / ENGINE)
    assert build(checkpoints, tmp_path) == 0
    told = capsys.readouterr().out
    assert "target: unchanged, kept" in told and "draft head: writing" in told


def test_too_little_room_is_refused_with_both_numbers(checkpoints, tmp_path, capsys, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 5000, 5000))
    assert build(checkpoints, tmp_path / "out") == 1
    refused = capsys.readouterr().err
    assert re.search(r"the build needs 44\d KB in", refused) and "5 KB are free" in refused and "--out" in refused
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "more, words",
    [
        (["--dtype", "bfloat16"], ["dtype is bfloat16", "openvino computes in float32"]),
        (["--tensor-parallel", "2"], ["tensor_parallel is 2", "openvino supports 1", "one process"]),
        (["--engine", "onnxruntime"], ["engine onnxruntime is unknown", "openvino"]),
        (["--draft-depth", "5"], ["draft_depth is 5", "4"]),
        (["--context", "1000"], ["context is 1000", "512"]),
        (["--slots", "41"], ["slots is 41", "40"]),
        (["--rows-per-step", "4"], ["rows_per_step is 4", "8 to 1024"]),
    ],
)
def test_what_cannot_be_built_is_refused_with_value_and_limit(checkpoints, tmp_path, capsys, more, words):
    assert build(checkpoints, tmp_path / "out", *more) == 1
    refused = capsys.readouterr().err
    assert [word for word in words if word not in refused] == []
    assert not (tmp_path / "out").exists()


def test_a_head_of_another_target_and_a_target_without_tokenizer_are_refused(checkpoints, tmp_path, capsys):
    target, head = checkpoints
    other = shutil.copytree(head, tmp_path / "head")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_target_layers": 36}))
    assert build((target, other), tmp_path / "out") == 1
    assert "num_target_layers is 36, the target's is 3" in capsys.readouterr().err
    bare = shutil.copytree(target, tmp_path / "target")
    (bare / "tokenizer.json").unlink()
    assert build((bare, head), tmp_path / "out") == 1
    assert "no tokenizer.json" in capsys.readouterr().err


def test_a_folder_that_holds_a_checkpoint_is_not_written_over(checkpoints, tmp_path, capsys):
    target, head = shutil.copytree(checkpoints[0], tmp_path / ENGINE), checkpoints[1]
    before = {path: path.read_bytes() for path in target.iterdir()}
    assert build((target, head), tmp_path) == 1
    assert "write over the target" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in target.iterdir()}


def test_a_folder_below_a_file_is_refused_before_the_build(checkpoints, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert build(checkpoints, tmp_path / "file" / "out", "--dry-run") == 1
    assert "is a file" in capsys.readouterr().err
