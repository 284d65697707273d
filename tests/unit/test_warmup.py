"""The measured cost curve covers every number of rows and leaves the step usable."""

from __future__ import annotations

import pytest
from jetspec_triton.drafts.torch import TorchDraft
from jetspec_triton.loop import DecodingLoop
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import LocalStep
from jetspec_triton.targets.base import TargetLimits
from jetspec_triton.targets.torch import TorchTarget
from jetspec_triton.warmup import measure_cost

from .tiny import VOCAB, run, tiny_head, tiny_target, tiny_tokenizer


@pytest.mark.parametrize("context, rows", [(160, 24), (64, 40), (70, 8)])
def test_the_curve_covers_all_rows_and_requests_run_afterwards(context, rows):
    model = tiny_target()

    def step() -> LocalStep:
        draft = TorchDraft(tiny_head(), model.embed_tokens.weight, model.lm_head.weight, 2, context)
        return LocalStep(TorchTarget(model, TargetLimits(2, context, rows)), draft)

    warm = step()
    cost = measure_cost(warm, repeats=3)
    assert cost.max_rows == rows and len(cost.seconds) == rows + 1
    assert 0 < cost.seconds[1] and cost.seconds == sorted(cost.seconds)
    prompts = [[5, 9, 33], [7] * 30, [8]]
    texts = [
        run(DecodingLoop(s, tiny_tokenizer(), VOCAB, cost=cost), prompts, 20, Sampling(0.8, seed=4))
        for s in (warm, step())
    ]
    assert texts[0] == texts[1]
