"""A tiny random target, its tokenizer, and drafters from always wrong to always right."""

from __future__ import annotations

import numpy as np
import torch
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.drafts.base import DraftEngine, DraftInput
from jetspec_triton.loop import DecodingLoop, collect
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from jetspec_triton.request import Request
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import LocalStep
from jetspec_triton.targets.base import TargetLimits
from jetspec_triton.targets.torch import TorchTarget
from tokenizers import Tokenizer, models

VOCAB = 64
CONFIG = TargetConfig("llama", 32, 48, 3, 4, 2, 8, VOCAB, 1e-5, 10000.0, False, 512, (0,))
DRAFT_CONFIG = DraftConfig(32, 48, 1, 4, 2, 8, VOCAB, 1e-5, 10000.0, 5, (0, 2), 3, 1)
LIMITS = TargetLimits(slots=4, context=160, rows_per_step=96)


def tiny_target(scale: float = 6.0) -> Llama:
    """Random weights; a sharp LM head, so that greedy text is not one repeated token."""
    torch.manual_seed(3)
    model = Llama(CONFIG, DRAFT_CONFIG.target_layer_ids).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.copy_(
                torch.randn_like(parameter) * (scale if "lm_head" in name else 1.5) / parameter.shape[1] ** 0.5
            )
    return model


def tiny_head() -> DraftHead:
    torch.manual_seed(4)
    return DraftHead(DRAFT_CONFIG).eval().requires_grad_(False)


def tiny_tokenizer() -> Tokenizer:
    return Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w1"))


class ScriptedDraft(DraftEngine):
    """Proposes the true continuation with probability `accuracy` at each depth: first if always, else at any rank."""

    config, slots, context, depth, width = DRAFT_CONFIG, LIMITS.slots, LIMITS.context, DRAFT_CONFIG.depth, 4

    def __init__(self, truth: list[list[int]], accuracy: float, seed: int = 0):
        self._truth, self._accuracy, self._rng = truth, accuracy, np.random.default_rng(seed)

    def propose_rows(self, step: DraftInput) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(step.slots), self.config.depth, self.width)
        ids = self._rng.integers(VOCAB, size=shape).astype(np.int32)
        probs = np.sort(self._rng.dirichlet(np.ones(self.width + 1), size=shape[:2])[..., 1:], axis=-1)[..., ::-1]
        committed = step.lengths + np.diff(step.feature_splits)
        for b in range(len(step.slots)):
            emitted = step.emitted[step.emitted_splits[b] : step.emitted_splits[b + 1]]
            for text in self._truth:
                if len(emitted) and committed[b] < len(text) and text[committed[b]] == emitted[-1]:
                    future = text[committed[b] + 1 : committed[b] + 1 + self.config.depth]
                    for d, token in enumerate(future):
                        if self._rng.random() < self._accuracy:
                            rank = 0 if self._accuracy == 1.0 else self._rng.integers(self.width)
                            ids[b, d, rank] = token
        return ids, np.log(np.maximum(probs, 1e-9)).astype(np.float32)


def make_loop(draft: DraftEngine, **settings) -> DecodingLoop:
    step = LocalStep(TorchTarget(tiny_target(), LIMITS), draft)
    return DecodingLoop(step, tiny_tokenizer(), VOCAB, **settings)


def run(
    loop: DecodingLoop, prompts: list[list[int]], max_tokens: int, sampling=Sampling(), **fields
) -> list[list[int]]:
    """Ids of every prompt, all submitted at once."""
    makers = [lambda sink, prompt=prompt: Request(prompt, max_tokens, sampling, sink, **fields) for prompt in prompts]
    return [[i for delta in deltas for i in delta.ids] for deltas in collect(loop, makers)]
