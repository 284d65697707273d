"""Every refusal at admission names the value and the limit; everything within the limits is taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jetspec_triton.errors import InvalidRequest
from jetspec_triton.request import MAX_STOPS, Request
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import StepLimits

LIMITS = StepLimits(slots=4, context=100, rows_per_step=32, draft_depth=4)
VOCAB = 64
GOOD = Request([1, 2, 3], 10, Sampling(), lambda delta: None)


def check(**fields) -> None:
    replace(GOOD, **fields).check(LIMITS, VOCAB)


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"prompt": []}, ["prompt", "0 tokens", "1"]),
        ({"prompt": [3, 64]}, ["input_ids", "64", "63"]),
        ({"prompt": [-1, 3]}, ["input_ids", "-1", "0", "63"]),
        ({"max_tokens": 0}, ["max_tokens", "0", "1"]),
        ({"max_tokens": -7}, ["max_tokens", "-7", "1"]),
        ({"prompt": [1] * 91}, ["91", "10", "101", "100"]),
        ({"max_tokens": 98}, ["3", "98", "101", "100"]),
        ({"sampling": Sampling(-0.1)}, ["temperature", "-0.1", "0.0", "100.0"]),
        ({"sampling": Sampling(100.5)}, ["temperature", "100.5", "0.0", "100.0"]),
        ({"sampling": Sampling(float("nan"))}, ["temperature", "nan", "100.0"]),
        ({"sampling": Sampling(float("inf"))}, ["temperature", "inf", "100.0"]),
        ({"sampling": Sampling(1.0, top_p=0.0)}, ["top_p", "0.0", "above 0"]),
        ({"sampling": Sampling(1.0, top_p=-0.5)}, ["top_p", "-0.5", "1e-06", "1.0"]),
        ({"sampling": Sampling(1.0, top_p=1.01)}, ["top_p", "1.01", "1e-06", "1.0"]),
        ({"sampling": Sampling(1.0, top_p=float("nan"))}, ["top_p", "nan", "1.0"]),
        ({"sampling": Sampling(1.0, top_k=-1)}, ["top_k", "-1", "0"]),
        ({"end_ids": frozenset([64])}, ["end_id", "64", "63"]),
        ({"end_ids": frozenset([-2])}, ["end_id", "-2", "0", "63"]),
        ({"min_tokens": -1}, ["min_tokens", "-1", "0", "10"]),
        ({"min_tokens": 11}, ["min_tokens", "11", "10"]),
        ({"draft_cap": -1}, ["draft_budget", "-1", "0", "31"]),
        ({"draft_cap": 32}, ["draft_budget", "32", "0", "31"]),
        ({"stops": ("a", "")}, ["stop_words", "empty"]),
        ({"stops": ("a",) * (MAX_STOPS + 1)}, ["stop_words", str(MAX_STOPS + 1), str(MAX_STOPS)]),
    ],
)
def test_a_refusal_names_the_value_and_the_limit(fields, words):
    with pytest.raises(InvalidRequest) as refused:
        check(**fields)
    message = str(refused.value)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": [0], "max_tokens": 1},
        {"prompt": [63] * 99, "max_tokens": 1},
        {"prompt": [5], "max_tokens": 99},
        {"sampling": Sampling(100.0, 0, 1.0, 2**64 - 1)},
        {"sampling": Sampling(1e-6, 2**31 - 1, 1e-6, 0)},
        {"sampling": Sampling(0.7)},
        {"end_ids": frozenset([0, 63]), "min_tokens": 10},
        {"draft_cap": 0},
        {"draft_cap": 31},
        {"stops": ("x", "\n\n")},
        {"stops": ("a",) * MAX_STOPS},
    ],
)
def test_the_limits_themselves_are_taken(fields):
    check(**fields)


@pytest.mark.parametrize(
    "sampling, words",
    [
        (Sampling(1.0, seed=-1), ["seed", "-1", "0"]),
        (Sampling(1.0, seed=2**64), ["seed", str(2**64), str(2**64 - 1)]),
        (Sampling(1.0, top_k=2**32 + 5), ["top_k", str(2**32 + 5)]),
        (Sampling(1.0, top_p=1e-50), ["top_p", "1e-50"]),  # 0 in float32, which would leave no candidate
    ],
)
def test_what_a_step_cannot_carry_is_refused_at_admission(sampling, words):
    with pytest.raises(InvalidRequest) as refused:
        check(sampling=sampling)
    assert [word for word in words if word not in str(refused.value)] == []
