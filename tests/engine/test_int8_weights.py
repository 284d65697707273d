"""The int8 build computes exactly what the rounded weights say: activations stay float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jetspec_triton.sampling import Sampling
from jetspec_triton.targets.base import TargetLimits
from jetspec_triton.targets.torch import TorchTarget

from ..unit.batches import BatchRow, chain_row, step_batch
from .built import CONTEXT, ROWS, SLOTS, VOCAB, Built


def round_to_int8(weight: torch.Tensor) -> torch.Tensor:
    """One scale per output row."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127
    return (weight / scale).round() * scale


@pytest.mark.parametrize("tied", [True, False])
def test_the_int8_target_equals_pytorch_on_rounded_weights(tmp_path, tied):
    built = Built(tmp_path, tied, draft_vocab=0, int8=True)
    model = built.model
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.copy_(round_to_int8(parameter))
    target, oracle = built.target(), TorchTarget(model, TargetLimits(SLOTS, CONTEXT, ROWS))
    prompt = [(11 * i + 4) % VOCAB for i in range(21)]
    steps = [
        [chain_row(0, 0, prompt, sampling=Sampling(0.9, seed=3)), chain_row(2, 0, prompt[:1])],
        [BatchRow(0, 21, [5, 6, 7, 8], [-1, 0, 0, 2]), chain_row(1, 0, prompt[:9], emit=False)],
    ]
    for rows in steps:
        mine, theirs = target.extend(step_batch(rows)), oracle.extend(step_batch(rows))
        assert mine.emitted.tolist() == theirs.emitted.tolist()
        assert np.allclose(mine.log_probs, theirs.log_probs, atol=1e-3)
        assert np.abs(mine.features - theirs.features).max() <= 1e-3 * np.abs(theirs.features).max()


def test_rounding_changes_the_numbers(tmp_path):
    """Otherwise the comparison above would say nothing about int8."""
    (tmp_path / "int8").mkdir()
    (tmp_path / "float").mkdir()
    row = step_batch([chain_row(0, 0, list(range(20)))])
    features = [Built(tmp_path / n, True, 0, int8=n == "int8").target().extend(row).features for n in ("int8", "float")]
    assert np.abs(features[0] - features[1]).max() > 1e-2
