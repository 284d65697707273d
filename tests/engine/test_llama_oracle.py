"""The PyTorch modules against transformers on the same weights, and the imported demo model against the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jetspec_triton.modules.llama import KVCache, Llama, causal_mask
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from .built import VOCAB, write_target

DEMO = Path(__file__).parents[2] / "models" / "smollm2-135m-instruct"
imported = pytest.mark.skipif(not (DEMO / "config.json").is_file(), reason="run `make setup` to import the demo model")


CHECKPOINTS = {
    "llama, tied": dict(tied=True),
    "llama, one key head": dict(tied=False, heads=(4, 1)),
    "llama, bfloat16 shards": dict(tied=False, heads=(8, 4), dtype=torch.bfloat16, max_shard_size="60KB"),
    "qwen3": dict(family="qwen3", tied=False),
    "qwen3, tied, a key head each": dict(family="qwen3", tied=True, heads=(3, 3)),
    "qwen3, bfloat16 shards": dict(
        family="qwen3", tied=False, heads=(8, 2), dtype=torch.bfloat16, max_shard_size="60KB"
    ),
}


@pytest.fixture(scope="module", params=CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def pair(request, tmp_path_factory):
    """(transformers' model, directory it was saved to)."""
    directory = tmp_path_factory.mktemp("target")
    return write_target(directory, seed=5, **request.param), directory


def test_shards_are_shards(tmp_path):
    """Otherwise the cases above would say nothing about an index."""
    write_target(tmp_path, **CHECKPOINTS["qwen3, bfloat16 shards"])
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert len(list(tmp_path.glob("*.safetensors"))) > 3


def random_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def forward(model: Llama, ids: torch.Tensor):
    with torch.inference_mode():
        return model(
            ids, torch.arange(ids.shape[1])[None].expand(ids.shape), causal_mask(ids.shape[1]).expand(len(ids), -1, -1)
        )


def test_logits_and_captured_layers_are_those_of_transformers(pair):
    reference, directory = pair
    ids = random_ids(3, 40)
    expected = reference(ids, output_hidden_states=True)
    model = Llama.load(directory, capture=(0, 1, 2))
    out = forward(model, ids)
    assert torch.allclose(model.logits(out.hidden), expected.logits, atol=1e-4, rtol=1e-4)
    layers = out.features.split(64, dim=-1)
    for layer in (0, 1):  # hidden_states[0] is the embedding; the last one is taken after the final norm
        assert torch.allclose(layers[layer], expected.hidden_states[layer + 1], atol=1e-4, rtol=1e-4)
    assert torch.allclose(model.norm(layers[2]), expected.hidden_states[3], atol=1e-4, rtol=1e-4)


def test_features_stand_in_the_order_in_which_the_head_names_its_layers(pair):
    """The head's `fc` was trained on the concatenation in this order."""
    reference, directory = pair
    ids = random_ids(1, 9)
    states = reference(ids, output_hidden_states=True).hidden_states
    features = forward(Llama.load(directory, capture=(1, 0)), ids).features
    assert torch.allclose(features, torch.cat((states[2], states[1]), dim=-1), atol=1e-4, rtol=1e-4)


def test_chunks_through_the_cache_equal_one_forward(pair):
    _, directory = pair
    model, ids = Llama.load(directory), random_ids(1, 30)
    whole = model.logits(forward(model, ids).hidden)
    cache, start, parts = KVCache.empty(model.config, 1, 64), 0, []
    for length in (11, 1, 1, 17):
        at = torch.arange(start, start + length)[None]
        mask = torch.ones(1, length, start + length, dtype=torch.bool).tril(start)
        with torch.inference_mode():
            parts.append(model.logits(model(ids[:, start : start + length], at, mask, cache, at).hidden))
        start += length
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-4, rtol=1e-4)


def test_positions_alone_place_a_row(pair):
    """A row's logits follow its position and mask, not its index: rows in any order give the same."""
    _, directory = pair
    model, ids = Llama.load(directory), random_ids(1, 12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    positions, mask = torch.arange(12)[None], causal_mask(12)
    with torch.inference_mode():
        plain = model(ids, positions, mask).hidden
        moved = model(ids[:, order], positions[:, order], mask[:, order][:, :, order]).hidden
    assert torch.allclose(moved, plain[:, order], atol=1e-4, rtol=1e-4)


# The imported demo model

TEXTS = [
    "The capital of France is Paris.\n\n1234567890 + 1 =",
    "def f(x):\n\treturn x ** 2  # äöü ß € 한국어 👩‍👩‍👧",
    "   leading and trailing spaces   ",
    "don't can't I'll we've\r\n\r\n...!?",
    "",
]


@imported
def test_the_imported_weights_give_transformers_logits():
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(TEXTS[0]).ids])
    reference, loading = LlamaForCausalLM.from_pretrained(DEMO, dtype=torch.float32, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    with torch.inference_mode():
        expected = reference.eval()(ids, output_hidden_states=True)
    model = Llama.load(DEMO, capture=(14,))
    out = forward(model, ids)
    assert torch.allclose(model.logits(out.hidden), expected.logits, atol=2e-3, rtol=1e-4)
    assert torch.allclose(out.features, expected.hidden_states[15], atol=2e-3, rtol=1e-4)


@imported
def test_the_imported_model_knows_that_paris_is_the_capital_of_france():
    """Both implementations read the same import; that the import is right shows in what the model says."""
    tokenizer, model = Tokenizer.from_file(str(DEMO / "tokenizer.json")), Llama.load(DEMO)
    ids = torch.tensor([tokenizer.encode("The capital of France is").ids])
    assert tokenizer.decode([int(model.logits(forward(model, ids).hidden)[0, -1].argmax())]) == " Paris"


@imported
@pytest.mark.parametrize("text", TEXTS)
def test_the_imported_tokenizer_round_trips_text(text):
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) <= len(text.encode())


@imported
def test_the_imported_tokenizer_knows_its_control_tokens_and_single_digits():
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user\n12<|im_end|>").tokens == [
        "<|im_start|>",
        "user",
        "Ċ",
        "1",
        "2",
        "<|im_end|>",
    ]
