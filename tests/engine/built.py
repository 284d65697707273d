"""Tiny random checkpoints in the Hugging Face layout, and the engines that serve them on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jetspec_build.engines import build_openvino
from jetspec_build.graphs.inplace_draft import write_inplace_draft
from jetspec_build.graphs.inplace_target import write_inplace_target
from jetspec_triton.checkpoint import DraftConfig, load_tensors
from jetspec_triton.drafts.openvino import OpenVINODraft
from jetspec_triton.drafts.tensorrt import TensorRTDraft
from jetspec_triton.drafts.torch import TorchDraft
from jetspec_triton.engines import open_draft, open_target
from jetspec_triton.in_place import cache_length, draft_bindings, target_bindings
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from jetspec_triton.targets.base import TargetLimits
from jetspec_triton.targets.openvino import OpenVINOTarget
from jetspec_triton.targets.tensorrt import TensorRTTarget
from jetspec_triton.targets.torch import TorchTarget
from transformers import LlamaConfig, LlamaForCausalLM

from .onnx_runtime import OnnxRuntimeModel

VOCAB = 96
LAYERS = (0, 2)  # captured by the head
SLOTS, CONTEXT, ROWS = 4, 96, 40  # three cache blocks a slot, and a part of one
WIDTH = 8


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


def write_head(directory: Path, draft_vocab: int, seed: int = 1) -> None:
    """draft_vocab: 0, or how many of the target's ids the head can propose."""
    torch.manual_seed(seed)
    config = DraftConfig(64, 80, 2, 4, 2, 32, VOCAB, 1e-5, 10000.0, 5, LAYERS, 3, VOCAB - 1, draft_vocab)
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

    def __init__(self, root: Path, tied: bool, draft_vocab: int, int8: bool = False, draft_depth: int = 4):
        self.checkpoint, self.head, self.engines = root / "target", root / "head", root / "engines"
        write_target(self.checkpoint, tied)
        write_head(self.head, draft_vocab)
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

    def in_place_target(self) -> TensorRTTarget:
        """The TensorRT engine's code and graph, in float32, with ONNX Runtime in TensorRT's place."""
        config, path, length = self.model.config, self.engines / "in_place_target.onnx", cache_length(CONTEXT, ROWS)
        tensors = {name.removeprefix("model."): array for name, array in load_tensors(self.checkpoint).items()}
        write_inplace_target(config, tensors, LAYERS, length, path, dtype=np.float32)
        bindings = target_bindings(config, len(LAYERS), length, torch.float32)
        return TensorRTTarget(config, TargetLimits(SLOTS, CONTEXT, ROWS), OnnxRuntimeModel(path, bindings, SLOTS))

    def in_place_draft(self) -> TensorRTDraft:
        config, path = DraftConfig.load(self.head), self.engines / "in_place_draft.onnx"
        length = cache_length(CONTEXT, ROWS, config.block_size)
        embedding, lm_head = self.model.embed_tokens.weight.numpy(), self.model.lm_head.weight.numpy()
        tensors = load_tensors(self.head)
        write_inplace_draft(config, tensors, embedding, lm_head, WIDTH, config.depth, length, path, dtype=np.float32)
        bindings = draft_bindings(config, config.depth, WIDTH, length, torch.float32)
        model = OnnxRuntimeModel(path, bindings, SLOTS)
        return TensorRTDraft(config, SLOTS, CONTEXT, config.depth, WIDTH, ROWS, model)
