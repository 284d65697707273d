"""A checkpoint's tensors: shards, dtypes and names; what is missing, unknown or of another shape is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from jetspec_triton.errors import ConfigError
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from jetspec_triton.weights import INDEX, TARGET_IGNORED, head_shapes, load_tensors, load_weights, target_shapes
from safetensors.torch import load_file, save_file

from .tiny import CONFIG, DRAFT_CONFIG, tiny_head


def test_tensors_of_all_files_come_as_float32_and_integers_stay(tmp_path):
    save_file({"a": torch.tensor([1.5, 2.0], dtype=torch.float16)}, tmp_path / "model-1.safetensors")
    save_file({"b": torch.tensor([3], dtype=torch.int32)}, tmp_path / "model-2.safetensors")
    tensors = load_tensors(tmp_path)
    assert tensors["a"].dtype == np.float32 and tensors["a"].tolist() == [1.5, 2.0]
    assert tensors["b"].dtype == np.int32 and tensors["b"].tolist() == [3]


def test_bfloat16_tensors_are_read_whatever_else_is_imported(tmp_path):
    """Most published checkpoints are bfloat16. A process of its own: some packages teach NumPy the type when imported."""
    save_file({"a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    code = "import sys; from jetspec_triton.weights import load_tensors as load; a = load(sys.argv[1])['a']; print(a.dtype, a.tolist())"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("float32 [1.5, -2.0]", 0), done.stderr[-300:]


def test_a_directory_without_tensors_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="safetensors"):
        load_tensors(tmp_path)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_saved_head_loads_with_the_same_weights(tmp_path, prefix):
    head = tiny_head()
    head.save(tmp_path, torch.float32)
    file = tmp_path / "model.safetensors"
    save_file({prefix + name: tensor for name, tensor in load_file(file).items()}, file)
    loaded = DraftHead.load(tmp_path)
    assert loaded.config == head.config
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])


# Shards


def shards(directory, **files: dict) -> None:
    """`a={"x": 1.0}` writes `a.safetensors` with a tensor `x`; an index names all of them."""
    for stem, tensors in files.items():
        save_file({name: torch.tensor([value]) for name, value in tensors.items()}, directory / f"{stem}.safetensors")
    names = {name: f"{stem}.safetensors" for stem, tensors in files.items() for name in tensors}
    (directory / INDEX).write_text(json.dumps({"weight_map": names}))


def test_an_index_says_which_files_count(tmp_path):
    save_file({"x": torch.tensor([9.0])}, tmp_path / "consolidated.safetensors")
    shards(tmp_path, one={"model.x": 1.0}, two={"lm_head.weight": 2.0})
    assert {name: array.tolist() for name, array in load_tensors(tmp_path).items()} == {
        "x": [1.0],
        "lm_head.weight": [2.0],
    }


def test_a_shard_that_was_not_downloaded_is_refused_by_name(tmp_path):
    shards(tmp_path, one={"x": 1.0}, two={"y": 2.0})
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(ConfigError, match="two.safetensors"):
        load_tensors(tmp_path)


@pytest.mark.parametrize("keep", [0, 40, -1], ids=["empty", "header", "last byte"])
def test_a_download_that_broke_off_is_refused_by_name(tmp_path, keep):
    tiny_head().save(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ConfigError, match="model.safetensors.*download it again"):
        load_tensors(tmp_path)


def test_a_name_that_two_files_hold_is_refused(tmp_path):
    save_file({"x": torch.tensor([1.0])}, tmp_path / "a.safetensors")
    save_file({"model.x": torch.tensor([1.0])}, tmp_path / "b.safetensors")
    with pytest.raises(ConfigError, match="holds x a second time"):
        load_tensors(tmp_path)


def test_a_dtype_without_a_meaning_here_is_refused_by_name(tmp_path):
    save_file({"x": torch.zeros(2).to(torch.float8_e4m3fn), "y": torch.ones(2)}, tmp_path / "model.safetensors")
    tensors = load_tensors(tmp_path)
    assert tensors["y"].tolist() == [1.0, 1.0]  # read by itself
    with pytest.raises(ConfigError, match="tensor x is F8_E4M3, supported are .*BF16"):
        tensors["x"]


# What a checkpoint must hold


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_shapes_are_those_of_the_modules(model_type, tied):
    config = replace(CONFIG, model_type=model_type, tie_word_embeddings=tied)
    module = {name: tuple(t.shape) for name, t in Llama(config).state_dict().items()}
    if tied:
        del module["lm_head.weight"]
    assert target_shapes(config) == module
    head = replace(DRAFT_CONFIG, draft_vocab_size=40 if tied else 0)
    assert head_shapes(head) == {name: tuple(t.shape) for name, t in DraftHead(head).state_dict().items()}


def saved_head(directory, change) -> None:
    tiny_head().save(directory, torch.float32)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: t.pop("layers.0.self_attn.k_norm.weight"), "lacks layers.0.self_attn.k_norm.weight"),
        (lambda t: t.update({"fc.weight": t["fc.weight"].to(torch.int8)}), "holds quantised weights: fc.weight is I8"),
        (lambda t: t.update({"markov.weight": torch.ones(1)}), "unknown weights: markov.weight"),
        (lambda t: t.update({"lm_head.weight": torch.ones(64, 32)}), "unknown weights: lm_head.weight"),
        (lambda t: t.update({"draft_vocab": torch.arange(64)}), "unknown weights: draft_vocab"),
        (lambda t: t.update({"norm.weight": torch.ones(31)}), r"norm.weight is \(31,\), expected \(32,\)"),
    ],
)
def test_a_head_with_other_weights_is_refused_by_name(tmp_path, change, words):
    saved_head(tmp_path, change)
    for load in (DraftHead.load, lambda d: load_weights(d, head_shapes(DRAFT_CONFIG))):
        with pytest.raises(ConfigError, match=words):
            load(tmp_path)


def test_a_tied_target_may_store_its_lm_head_again(tmp_path):
    config = replace(CONFIG, tie_word_embeddings=True)
    extra = {"lm_head.weight": (64, 32), "layers.0.self_attn.rotary_emb.inv_freq": (4,)}
    stored = {name: torch.zeros(shape) for name, shape in (target_shapes(config) | extra).items()}
    save_file(stored, tmp_path / "model.safetensors")
    load_weights(tmp_path, target_shapes(config), TARGET_IGNORED)
    with pytest.raises(ConfigError, match="inv_freq, lm_head.weight|lm_head.weight, .*inv_freq"):
        load_weights(tmp_path, target_shapes(config))


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_without_a_map_is_refused(tmp_path, text):
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ConfigError, match="index.json"):
        load_tensors(tmp_path)
