"""The decoding loop on the demo model with plain PyTorch on the GPU, in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jetspec_triton import sampling
from jetspec_triton.device_sampling import sample_rows
from jetspec_triton.drafts.torch import TorchDraft
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import LocalStep
from jetspec_triton.targets.base import TargetLimits
from jetspec_triton.targets.torch import TorchTarget

from .conftest import HEAD
from .texts import MODES, PROMPTS, texts

LIMITS = TargetLimits(slots=len(PROMPTS), context=256, rows_per_step=128)


def torch_step(model_directory, device: str) -> LocalStep:
    head = DraftHead.load(HEAD)
    model = Llama.load(model_directory, head.config.target_layer_ids)
    tables = (model.embed_tokens.weight, model.lm_head.weight)
    draft = TorchDraft(head, *tables, LIMITS.slots, LIMITS.context, device=device)
    return LocalStep(TorchTarget(model, LIMITS, device), draft)


@pytest.fixture(scope="module")
def step(cuda, demo_model) -> LocalStep:
    return torch_step(demo_model, cuda)


@pytest.mark.parametrize("mode", MODES)
def test_speculation_changes_no_id(step, demo_model, mode):
    vocab = step.target.config.vocab_size
    plain = texts(step, demo_model, vocab, mode, speculate=False)
    assert sum(len(set(text)) > 4 for text in plain) == len(PROMPTS)
    assert texts(step, demo_model, vocab, mode, speculate=True) == plain


def test_the_device_draws_what_the_host_draws(cuda):
    logits = np.random.default_rng(5).normal(size=(6, 50_000)).astype(np.float32) * 3
    params = [Sampling(), Sampling(0.8, seed=3), Sampling(1.0, 40, 0.95, 2**64 - 3), Sampling(0.7, 0, 0.9, 8)]
    params += [Sampling(2.0, 1, 1.0, 4), Sampling(1.5, 7, 1.0, 2**63)]
    columns = [np.array([getattr(p, name) for p in params]) for name in ("temperature", "top_k", "top_p")]
    seeds, positions = np.array([p.seed for p in params], np.uint64), np.arange(6) * 1000
    drawn = sample_rows(torch.from_numpy(logits).to(cuda), positions, *columns, seeds)
    assert drawn.device.type == cuda
    assert drawn.tolist() == [sampling.sample(row, int(at), p) for row, at, p in zip(logits, positions, params)]
