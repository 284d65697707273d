"""From a Qwen3 directory and a published-format head to a running server: `jetspec build`, then transformers' own ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jetspec_client import Client, Options
from jetspec_client.cli import main
from jetspec_client.local_server import LocalServer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedModel

from ..engine.built import write_head, write_target
from ..unit.byte_level import SPECIALS, byte_level

ROOT = Path(__file__).parents[2]
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
PROMPTS = [[5, 9, 33], [7], [40 + 3 * i for i in range(50)], [9, 9, 8, 9, 9, 8, 9]]
TOKENS = 40


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> tuple[Path, Path, PreTrainedModel]:
    """(target directory, head directory, transformers' model)."""
    root = tmp_path_factory.mktemp("qwen3")
    tokenizer = byte_level()
    vocab = tokenizer.get_vocab_size()
    save = {"vocab": vocab, "dtype": torch.bfloat16, "max_shard_size": "100KB"}
    model = write_target(root / "target", tied=False, seed=12, family="qwen3", heads=(6, 2), **save)
    tokenizer.save(str(root / "target" / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": SPECIALS[2]}
    (root / "target" / "tokenizer_config.json").write_text(json.dumps(settings))
    write_head(root / "head", draft_vocab=0, vocab=vocab, layers=5)
    return root / "target", root / "head", model


@pytest.fixture(scope="module")
def client(checkpoint, tmp_path_factory) -> Iterator[Client]:
    target, head, _ = checkpoint
    out = tmp_path_factory.mktemp("built")
    limits = ["--slots", "4", "--context", "128", "--rows-per-step", "32", "--draft-depth", "4"]
    command = ["build", "--engine", "openvino", "--target", str(target), "--head", str(head), "--out", str(out)]
    assert main([*command, *limits, "--float32"]) == 0
    with LocalServer(out / "model_repository", ROOT / "backends") as server:
        server.wait_ready()
        yield Client(server.grpc_url, timeout_s=120)


def greedy(model: PreTrainedModel, prompt: list[int], tokens: int) -> list[int]:
    out = model.generate(
        torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: f"{len(prompt)} tokens")
def test_the_server_says_what_transformers_generates(client, checkpoint, prompt):
    expected = greedy(checkpoint[2], prompt, TOKENS)
    assert len(set(expected)) > 4
    plain = client.generate(prompt, Options(max_tokens=TOKENS, end_id=-1, speculate=False))
    assert plain.ids == expected and plain.counts["total_draft_tokens"] == 0
    drafted = client.generate(prompt, Options(max_tokens=TOKENS, end_id=-1))
    assert drafted.ids == expected
    repeated = client.generate(prompt + expected[:30], Options(max_tokens=TOKENS - 30, end_id=-1, draft_budget=8))
    assert repeated.ids == expected[30:]


def test_drafts_were_verified_and_some_accepted(client):
    """Otherwise the comparison above would say little. The head is random: what is accepted comes from the text itself."""
    answers = [client.generate(prompt, Options(max_tokens=TOKENS, end_id=-1)) for prompt in PROMPTS]
    drafted, accepted = (
        sum(answer.counts[f"total_{kind}_tokens"] for answer in answers) for kind in ("draft", "accepted_draft")
    )
    assert drafted > 20 and accepted > 0


def test_a_chat_turn_stands_in_the_template_of_the_tokenizers_settings(client, checkpoint):
    target, _, model = checkpoint
    messages = [{"role": "user", "content": "the STO in"}]
    told = AutoTokenizer.from_pretrained(target).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    ids = Tokenizer.from_file(str(target / "tokenizer.json")).encode(told).ids
    got = client.generate("the STO in", Options(max_tokens=8, chat=True, end_id=-1))
    assert got.counts["num_input_tokens"] == len(ids)
    assert got.ids == greedy(model, ids, 8)
