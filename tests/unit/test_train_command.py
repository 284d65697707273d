"""`jetspec train` takes a target to a head that the evaluation and the engines can use; a second run goes on from it."""

from __future__ import annotations

import json

import pytest
from jetspec_build.train.command import spread_layers
from jetspec_client.cli import main
from jetspec_triton.checkpoint import DraftConfig, TargetConfig

from .tiny_checkpoint import write_head, write_held_out, write_target


def test_a_target_gets_a_head_with_its_evaluation_and_card(tmp_path, capfd):
    target, held_out = write_target(tmp_path / "target"), write_held_out(tmp_path / "heldout")
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"prompt": f"number {i}"}) + "\n" for i in range(5)))
    command = ["train", "--target", str(target), "--out", str(tmp_path / "head"), "--work", str(tmp_path / "work")]
    command += ["--prompts", str(own), "--tokens", "1500", "--minutes", "0.02", "--batch", "4", "--block-size", "4"]
    command += ["--heldout", str(held_out), "--eval-prompts", "2", "--eval-tokens", "12"]
    assert main(command) == 0, capfd.readouterr().err
    config = DraftConfig.load(tmp_path / "head")
    config.check_target(TargetConfig.load(target))
    assert config.target_layer_ids == (0, 1, 2) and config.block_size == 4
    result = json.loads((tmp_path / "head" / "evaluation.json").read_text())
    assert result["mean"]["as_served"]["16"] >= 1
    log = json.loads((tmp_path / "work" / "head.json").read_text())["log"]
    curve = [entry["tokens_per_round"] for entry in log if "tokens_per_round" in entry]
    assert curve and all(figure >= 1 for figure in curve)
    assert "own.jsonl" in (tmp_path / "head" / "README.md").read_text()
    texts = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*/text/*")}
    assert main(command) == 0
    assert texts and texts == {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*/text/*")}


def test_eval_head_writes_what_it_prints(tmp_path, capfd):
    target = write_target(tmp_path / "target")
    head, held_out = write_head(tmp_path / "head", target), write_held_out(tmp_path / "heldout")
    command = ["eval-head", "--target", str(target), "--head", str(head), "--heldout", str(held_out), "--tokens", "8"]
    command += ["--prompts", "2", "--budgets", "4", "--temperatures", "0", "--json", str(tmp_path / "result.json")]
    assert main(command) == 0, capfd.readouterr().err
    mean = json.loads((tmp_path / "result.json").read_text())["mean"]["as_served"]["4"]
    assert f"| {mean:.2f} |" in capfd.readouterr().out


def test_a_head_of_another_target_is_refused(tmp_path, capfd):
    target = write_target(tmp_path / "target")
    head = write_head(tmp_path / "head", target)
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**config, "num_target_layers": 9}))
    held_out = write_held_out(tmp_path / "heldout")
    assert main(["eval-head", "--target", str(target), "--head", str(head), "--heldout", str(held_out)]) == 1
    assert "num_target_layers is 9" in capfd.readouterr().err


def test_layers_are_spread_as_published_heads_have_them():
    assert spread_layers(36) == [1, 9, 17, 25, 33]
    assert spread_layers(30) == [1, 8, 14, 21, 27]
    assert spread_layers(3) == [0, 1, 2]


@pytest.mark.parametrize(
    "flag, value",
    [
        ("--layers", "99"), ("--batch", "0"), ("--num-layers", "0"), ("--block-size", "1"), ("--draft-vocab", "0"),
        ("--tokens", "-1"), ("--minutes", "-1"), ("--eval-prompts", "0"), ("--device", "none"),
    ],
)  # fmt: skip
def test_training_refuses_a_flag_before_it_writes(tmp_path, capfd, flag, value):
    command = ["train", "--target", str(write_target(tmp_path / "target")), "--out", str(tmp_path / "head")]
    assert main([*command, "--work", str(tmp_path / "work"), f"{flag}={value}"]) == 1
    assert f"{flag} is {value}" in capfd.readouterr().err and not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    "flag, value",
    [("--budgets", "0"), ("--temperatures", "-1.0"), ("--depth", "9"), ("--tokens", "0"), ("--prompts", "-1")],
)
def test_the_evaluation_refuses_a_flag_before_it_starts(tmp_path, capfd, flag, value):
    target = write_target(tmp_path / "target")
    command = ["eval-head", "--target", str(target), "--head", str(write_head(tmp_path / "head", target))]
    assert main([*command, "--heldout", str(tmp_path / "none"), f"{flag}={value}"]) == 1
    assert f"{flag} is {value}" in capfd.readouterr().err and not (tmp_path / "none").exists()
