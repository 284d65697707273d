"""The TensorRT-LLM target on a GPU against the PyTorch oracle, on tiny random checkpoints in float16."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from jetspec_triton.errors import ConfigError
from jetspec_triton.modules.llama import Llama
from jetspec_triton.sampling import Sampling
from jetspec_triton.targets.base import TargetLimits
from jetspec_triton.targets.tensorrt_llm import TensorRTLLMTarget
from jetspec_triton.targets.torch import TorchTarget

from ..engine.built import randomise
from ..engine.target_rounds import assert_close, make_rows, play
from ..unit.batches import BatchRow, chain_row, step_batch

LIMITS = TargetLimits(slots=4, context=256, rows_per_step=96)
LAYERS, VOCAB = (0, 2), 96
TOLERANCE = 0.03  # float16 against float32, of the largest value


@pytest.fixture(scope="module", autouse=True)
def package() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    if importlib.util.find_spec("tensorrt_llm") is None:
        pytest.skip("tensorrt_llm is not installed")


def write_checkpoint(directory: Path, model_type: str) -> None:
    """Random weights with a sharp head, and a `draft/config.json` that names the captured layers."""
    import transformers

    torch.manual_seed(2)
    name = {"llama": "Llama", "qwen3": "Qwen3"}[model_type]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=0,
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval().requires_grad_(False)
    randomise(model, 1.2)
    model.half().save_pretrained(directory)
    stated = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**stated, "torch_dtype": "float16", "rope_theta": 10000.0}))
    sizes = {k: stated[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")}
    head = {
        **sizes,
        "head_dim": 64,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-6,
        "block_size": 5,
        "num_target_layers": 3,
        "dflash_config": {"causal_head": True, "target_layer_ids": list(LAYERS), "mask_token_id": 1},
    }
    (directory / "draft").mkdir()
    (directory / "draft" / "config.json").write_text(json.dumps(head))


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def checkpoint(request, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp(request.param) / "target"
    write_checkpoint(directory, request.param)
    return directory


@pytest.fixture(scope="module")
def target(checkpoint) -> TensorRTLLMTarget:
    return TensorRTLLMTarget.open(checkpoint, LIMITS)


@pytest.fixture
def oracle(checkpoint) -> TorchTarget:
    return TorchTarget(Llama.load(checkpoint, LAYERS), LIMITS)


def compare(target, oracle, lengths, parents, tokens) -> None:
    """One forward over rows in slots 0, 1, ... and everything kept that is a chain."""
    rows = make_rows(list(range(len(lengths))), lengths, parents, tokens)
    mine, theirs = target.forward(rows), oracle.forward(rows)
    assert mine.features.is_cuda and mine.logits.is_cuda
    assert_close(mine.logits, theirs.logits, TOLERANCE)
    assert_close(mine.features, theirs.features, TOLERANCE)
    for engine in (target, oracle):
        for slot, length in enumerate(lengths):
            engine.commit(slot, length, np.arange(len(parents[slot])))
    target.settle()


def chain(nodes: int) -> np.ndarray:
    return np.arange(-1, nodes - 1, dtype=np.int32)


@torch.inference_mode()
def test_a_prompt_in_chunks_beside_decoding_rows(target, oracle):
    rng = np.random.default_rng(0)
    draw = rng.integers
    compare(target, oracle, [0, 0], [chain(40), chain(7)], [draw(VOCAB, size=40), draw(VOCAB, size=7)])
    compare(target, oracle, [40, 7], [chain(33), chain(1)], [draw(VOCAB, size=33), draw(VOCAB, size=1)])
    compare(target, oracle, [73, 8], [chain(1), chain(1)], [draw(VOCAB, size=1), draw(VOCAB, size=1)])


@pytest.mark.parametrize("nodes", [2, 16, 17, 31, 32, 33, 64, 65])
@torch.inference_mode()
def test_trees_of_every_width(target, oracle, nodes):
    """Around the words of a mask and the kernels' tile sizes; a branch right after the root makes it no chain."""
    rng = np.random.default_rng(nodes)
    parents = np.array([-1, *(int(rng.integers(i)) for i in range(1, nodes))], np.int32)
    parents[-1] = 0
    compare(target, oracle, [0, 0], [chain(20), chain(9)], [rng.integers(VOCAB, size=20), rng.integers(VOCAB, size=9)])
    rows = make_rows(
        [0, 1], [20, 9], [parents, chain(1)], [rng.integers(VOCAB, size=nodes), rng.integers(VOCAB, size=1)]
    )
    mine, theirs = target.forward(rows), oracle.forward(rows)
    assert_close(mine.logits, theirs.logits, TOLERANCE)
    assert_close(mine.features, theirs.features, TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
@torch.inference_mode()
def test_random_rounds_of_ragged_rows(target, oracle, seed):
    play(target, oracle, rounds=40, seed=seed, tolerance=TOLERANCE)


def plain(target, prompt: list[int], count: int, sampling: Sampling) -> list[int]:
    out, row = [], chain_row(2, 0, prompt, sampling=sampling)
    while len(out) < count:
        out += target.extend(step_batch([row])).emitted.tolist()
        row = chain_row(2, len(prompt) + len(out) - 1, out[-1:], sampling=sampling)
    return out


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, seed=7)])
def test_right_guesses_are_accepted_and_what_follows_is_the_plain_text(target, sampling):
    prompt = [(5 * i) % VOCAB for i in range(21)]
    text = plain(target, prompt, 12, sampling)
    target.extend(step_batch([chain_row(3, 0, prompt, sampling=sampling)]))
    wrong = [(t + 1) % VOCAB for t in text]
    tree, parents = [text[0], wrong[1], text[1], wrong[2], text[2], text[3]], [-1, 0, 0, 2, 2, 4]
    out = target.extend(step_batch([BatchRow(3, len(prompt), tree, parents, sampling=sampling)]))
    assert out.emitted.tolist() == text[1:5] and np.diff(out.feature_splits).tolist() == [4]
    after = target.extend(step_batch([chain_row(3, len(prompt) + 4, [text[4]], sampling=sampling)]))
    assert after.emitted.tolist() == text[5:6]


def test_several_ranks_are_refused(checkpoint):
    with pytest.raises(ConfigError, match="tensor_parallel is 2"):
        TensorRTLLMTarget.open(checkpoint, LIMITS, tensor_parallel=2)
