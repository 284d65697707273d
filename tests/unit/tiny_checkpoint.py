"""A tiny target and head as checkpoint directories, with a tokenizer and a chat template, and held-out sets to match."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import torch
from jetspec_build.train.prompt_sets import SETS
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from safetensors.torch import save_file

from .byte_level import SPECIALS, byte_level

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
)
QUESTIONS = ["what is the sum of two and three", "name a river that flows into the northern sea", "hi there"]


def write_target(directory: Path) -> Path:
    """Two layers of random weights over the byte-level tokenizer."""
    tokenizer = byte_level()
    end = tokenizer.token_to_id(SPECIALS[2])
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": tokenizer.get_vocab_size(),
        "rms_norm_eps": 1e-5, "max_position_embeddings": 256, "tie_word_embeddings": True, "eos_token_id": end,
    }  # fmt: skip
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer.save(str(directory / "tokenizer.json"))
    torch.manual_seed(3)
    model = Llama(TargetConfig.load(directory))
    weights = {f"model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}
    del weights["model.lm_head.weight"]
    save_file(weights, directory / "model.safetensors")
    return directory


def write_head(directory: Path, target: Path) -> Path:
    torch.manual_seed(4)
    config = TargetConfig.load(target)
    DraftHead(
        DraftConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=1,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope_theta,
            block_size=4,
            target_layer_ids=(0, 2),
            num_target_layers=config.num_layers,
            mask_token_id=0,
        )
    ).save(directory)
    return directory


def write_held_out(directory: Path) -> Path:
    """Packages of the held-out sets' names, with the `QUESTIONS` in them."""
    directory.mkdir(parents=True)
    for prompts in SETS.values():
        text = "\n".join(json.dumps({prompts.field: question}) for question in QUESTIONS).encode()
        name = prompts.package.split("==")[0].replace("-", "_")
        with zipfile.ZipFile(directory / f"{name}-0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(prompts.member, gzip.compress(text) if prompts.member.endswith(".gz") else text)
    return directory
