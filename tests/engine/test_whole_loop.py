"""The decoding loop gives the same ids over every engine as over PyTorch, with and without speculation."""

from __future__ import annotations

import pytest
from jetspec_triton.engines import open_step
from jetspec_triton.loop import DecodingLoop
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import LocalStep, Step

from ..unit.tiny import run, tiny_tokenizer
from .built import VOCAB, Built

PROMPTS = [[5, 9, 33], [(7 * i) % VOCAB for i in range(1, 60)], [7], [9, 9, 8, 9, 9, 8, 9], [50, 3, 22, 41, 12]]
TOKENS = 25
MODES = [Sampling(), Sampling(0.9, seed=11), Sampling(1.3, 12, 0.85, 2**63 + 5)]
modes = pytest.mark.parametrize("mode", MODES)


def texts(step: Step, mode: Sampling, **settings) -> list[list[int]]:
    """All prompts at once: more than there are slots, one of them longer than a step."""
    fields = {"speculate": settings.pop("speculate", True)}
    return run(DecodingLoop(step, tiny_tokenizer(), VOCAB, **settings), PROMPTS, TOKENS, mode, **fields)


@pytest.fixture(scope="module", params=["openvino", "in place"])
def engine(request, built) -> Step:
    if request.param == "openvino":
        return open_step(built.engines, threads=1)
    return LocalStep(built.in_place_target(), built.in_place_draft())


@pytest.fixture(scope="module")
def plain(built) -> dict[Sampling, list[list[int]]]:
    """PyTorch, no speculation."""
    step = LocalStep(built.torch_target(), built.torch_draft())
    ids = {mode: texts(step, mode, speculate=False) for mode in MODES}
    assert sum(len(set(text)) > 4 for of_mode in ids.values() for text in of_mode) >= 12  # of 15
    return ids


def test_the_limits_are_those_of_the_build(engine, built):
    assert engine.limits == LocalStep(built.torch_target(), built.torch_draft()).limits


@modes
def test_pytorch_speculates_the_same_ids(built, plain, mode):
    assert texts(LocalStep(built.torch_target(), built.torch_draft()), mode) == plain[mode]


@modes
@pytest.mark.parametrize("settings", [{}, {"speculate": False}, {"max_draft": 3}, {"prefill_rows": 7}], ids=str)
def test_every_engine_says_the_same_ids(engine, plain, mode, settings):
    assert texts(engine, mode, **settings) == plain[mode]


def test_int8_weights_keep_speculative_ids_equal_to_plain_ids(tmp_path):
    """The form that is served: weights are rounded, so the ids are its own, but speculation must not change them."""
    step = open_step(Built(tmp_path, tied=True, draft_vocab=40, int8=True).engines, threads=1)
    for mode in MODES:
        alone = texts(step, mode, speculate=False)
        for settings in ({}, {"max_draft": 3}):
            assert texts(step, mode, **settings) == alone
