"""Tiny random checkpoints in the Hugging Face layout, and what `build_openvino` makes of them."""

from __future__ import annotations

from pathlib import Path

import torch
from jetspec_build.engines import build_openvino
from jetspec_triton.checkpoint import DraftConfig
from jetspec_triton.drafts.openvino import OpenVINODraft
from jetspec_triton.drafts.torch import TorchDraft
from jetspec_triton.engines import open_draft, open_target
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from jetspec_triton.targets.base import TargetLimits
from jetspec_triton.targets.openvino import OpenVINOTarget
from jetspec_triton.targets.torch import TorchTarget
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 96
LAYERS = (0, 2)  # captured by the head
SLOTS, CONTEXT, ROWS = 4, 96, 40  # three cache blocks a slot, and a part of one


def write_target(directory: Path, tied: bool, seed: int = 2) -> LlamaForCausalLM:
    """A random Llama whose text is not one repeated token."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
        tie_word_embeddings=tied,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            scale = 3.0 if "embed" in name or "lm_head" in name else 1.5
            parameter.copy_(torch.randn_like(parameter) * scale / parameter.shape[1] ** 0.5)
        else:
            parameter.copy_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(directory)
    return model


def write_head(directory: Path, draft_vocab: int, seed: int = 1, parent: int = 0) -> None:
    """draft_vocab: 0, or how many of the target's ids the head can propose. parent: width of the parent correction."""
    torch.manual_seed(seed)
    config = DraftConfig(64, 80, 2, 4, 2, 32, VOCAB, 1e-5, 10000.0, 5, LAYERS, 3, VOCAB - 1, draft_vocab, parent)
    head = DraftHead(config).requires_grad_(False)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[1] ** 0.5)
        else:
            parameter.copy_(torch.rand_like(parameter) + 0.5)
    if draft_vocab:
        head.draft_vocab.copy_(torch.randperm(VOCAB)[:draft_vocab].sort().values)
    head.save(directory)


class Built:
    """A built directory and the checkpoints it came from."""

    def __init__(self, root: Path, tied: bool, draft_vocab: int, int8: bool = False, draft_depth: int = 4, parent: int = 12):
        self.checkpoint, self.head, self.engines = root / "target", root / "head", root / "engines"
        write_target(self.checkpoint, tied)
        write_head(self.head, draft_vocab, parent=parent)
        limits = {"slots": SLOTS, "context": CONTEXT, "rows_per_step": ROWS, "draft_depth": draft_depth}
        build_openvino(self.checkpoint, self.head, self.engines, int8=int8, **limits)
        self.model = Llama.load(self.checkpoint, LAYERS)

    def target(self) -> OpenVINOTarget:
        return open_target(self.engines, threads=1)

    def draft(self) -> OpenVINODraft:
        return open_draft(self.engines, threads=1)

    def torch_target(self) -> TorchTarget:
        return TorchTarget(self.model, TargetLimits(SLOTS, CONTEXT, ROWS))

    def torch_draft(self) -> TorchDraft:
        model = self.model
        return TorchDraft(DraftHead.load(self.head), model.embed_tokens.weight, model.lm_head.weight, SLOTS, CONTEXT)
