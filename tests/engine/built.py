"""Tiny random checkpoints in the Hugging Face layout, and the engines that serve them on a CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from jetspec_build.engines import Order, build_engine
from jetspec_build.graphs.inplace_draft import write_inplace_draft
from jetspec_build.graphs.inplace_target import write_inplace_target
from jetspec_triton.checkpoint import DraftConfig
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
from jetspec_triton.weights import load_tensors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from .onnx_runtime import OnnxRuntimeModel

VOCAB = 96
LAYERS = (0, 2)  # captured by the head
WIDTH = 16
SLOTS, CONTEXT, ROWS = 4, 96, 40  # three cache blocks a slot, and a part of one


FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


def randomise(model: torch.nn.Module, scale: float = 1.5) -> None:
    """Random weights of `scale` by width, larger tables, norms around 1: a text that is not one repeated token."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            size = 3.0 if "embed" in name or "lm_head" in name else scale
            parameter.copy_(torch.randn_like(parameter) * size / parameter.shape[1] ** 0.5)
        else:
            parameter.copy_(torch.rand_like(parameter) + 0.5)


def write_target(
    directory: Path,
    tied: bool,
    seed: int = 2,
    family: str = "llama",
    heads: tuple[int, int] = (4, 2),
    dtype: torch.dtype = torch.float32,
    vocab: int = VOCAB,
    **save,
) -> PreTrainedModel:
    """A random target whose text is not one repeated token, saved in `dtype`; the one returned computes in float32."""
    torch.manual_seed(seed)
    make_config, make_model = FAMILIES[family]
    config = make_config(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=32,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 20000.0},
        tie_word_embeddings=tied,
        eos_token_id=0,
    )
    model = make_model(config).eval().requires_grad_(False)
    randomise(model)
    model.to(dtype).save_pretrained(directory, **save)
    return make_model.from_pretrained(directory, dtype=torch.float32).eval().requires_grad_(False)


def write_head(
    directory: Path, draft_vocab: int, seed: int = 1, vocab: int = VOCAB, layers: int = 2, parent: int = 0
) -> None:
    """draft_vocab: 0, or how many of the target's ids the head can propose. parent: width of the parent correction."""
    torch.manual_seed(seed)
    config = DraftConfig(64, 80, layers, 4, 2, 32, vocab, 1e-5, 10000.0, 5, LAYERS, 3, vocab - 1, draft_vocab, parent)
    head = DraftHead(config).requires_grad_(False)
    randomise(head)
    if draft_vocab:
        head.draft_vocab.copy_(torch.randperm(vocab)[:draft_vocab].sort().values)
    head.save(directory)


class Built:
    """A built directory and the checkpoints it came from."""

    def __init__(
        self,
        root: Path,
        tied: bool,
        draft_vocab: int,
        int8: bool = False,
        draft_depth: int = 4,
        family: str = "llama",
        heads: tuple[int, int] = (4, 2),
        seed: int = 2,
        parent: int = 12,
    ):
        self.checkpoint, self.head, self.engines = root / "target", root / "head", root / "engines"
        write_target(self.checkpoint, tied, seed, family, heads)
        write_head(self.head, draft_vocab, parent=parent)
        limits = {"slots": SLOTS, "context": CONTEXT, "rows_per_step": ROWS, "draft_depth": draft_depth}
        build_engine(Order(self.checkpoint, self.head, int8=int8, **limits), self.engines)
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
        tensors = load_tensors(self.checkpoint)
        write_inplace_target(config, tensors, LAYERS, length, path, dtype=np.float32)
        bindings = target_bindings(config, len(LAYERS), length, torch.float32)
        return TensorRTTarget(config, TargetLimits(SLOTS, CONTEXT, ROWS), OnnxRuntimeModel(path, bindings, SLOTS))

    def in_place_draft(self, depth: int = 0) -> TensorRTDraft:
        """depth: 0 for the head's own."""
        config, path = DraftConfig.load(self.head), self.engines / "in_place_draft.onnx"
        depth = depth or config.depth
        length = cache_length(CONTEXT, ROWS, depth + 1)
        embedding, lm_head = self.model.embed_tokens.weight.numpy(), self.model.lm_head.weight.numpy()
        tensors = load_tensors(self.head)
        write_inplace_draft(config, tensors, embedding, lm_head, WIDTH, depth, length, path, dtype=np.float32)
        bindings = draft_bindings(config, depth, WIDTH, length, torch.float32)
        return TensorRTDraft(config, SLOTS, CONTEXT, depth, WIDTH, ROWS, OnnxRuntimeModel(path, bindings, SLOTS))
