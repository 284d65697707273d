"""Noise statistics, candidate sets and pruning against obvious oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jetspec_triton import sampling
from jetspec_triton.sampling import Sampling, candidates, gumbel, sample

from .chi_square import chi_square_p

SEEDS = [0, 1, 2, 12345, 2**32, 2**63, 2**64 - 1]
VOCAB = 2000
IDS = np.arange(VOCAB)


def uniform(seed: int, position: int, ids: np.ndarray = IDS) -> np.ndarray:
    """The uniform numbers behind the noise."""
    return np.exp(-np.exp(-gumbel(seed, position, ids)))


def test_noise_has_the_moments_of_a_standard_gumbel():
    noise = np.concatenate([gumbel(seed, position, IDS) for seed in SEEDS for position in range(20)])
    error = math.pi / math.sqrt(6 * len(noise))
    assert noise.mean() == pytest.approx(0.577216, abs=4 * error)
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=0.02)


def test_noise_is_uniform_underneath():
    values = np.concatenate([uniform(seed, position) for seed in SEEDS for position in range(10)])
    counts = np.histogram(values, bins=64, range=(0, 1))[0]
    assert chi_square_p(counts, np.full(64, 1 / 64)) > 1e-4


@pytest.mark.parametrize(
    "other",
    [
        lambda seed, position: (seed, position + 1, IDS),
        lambda seed, position: (seed + 1, position, IDS),
        lambda seed, position: (seed + 1, position + 1, IDS),
        lambda seed, position: (seed + 1, position - 1, IDS),
        lambda seed, position: (seed, position, IDS + 1),
        lambda seed, position: (seed, position + 1, IDS + 1),
        lambda seed, position: (seed + 1, position, IDS + 1),
    ],
)
def test_neighbouring_keys_are_independent(other):
    pairs = [(seed, position) for seed in range(0, 40, 2) for position in (1, 7, 100)]
    here = np.concatenate([uniform(*pair) for pair in pairs])
    there = np.concatenate([uniform(*other(*pair)) for pair in pairs])
    counts = np.histogram2d(here, there, bins=8, range=((0, 1), (0, 1)))[0].ravel()
    assert chi_square_p(counts, np.full(64, 1 / 64)) > 1e-4


def test_the_winner_among_equals_is_uniform_over_seeds_and_over_positions():
    logits = np.zeros(8, np.float32)
    for draws in (
        [sample(logits, 5, Sampling(1.0, seed=seed)) for seed in range(4000)],
        [sample(logits, position, Sampling(1.0, seed=9)) for position in range(4000)],
    ):
        assert chi_square_p(np.bincount(draws, minlength=8), np.full(8, 1 / 8)) > 1e-4


def test_noise_depends_on_seed_position_and_token_alone():
    for seed in SEEDS:
        whole = gumbel(seed, 3, IDS)
        assert np.array_equal(whole, gumbel(seed, 3, IDS))
        assert np.array_equal(whole[[4, 1, 900]], gumbel(seed, 3, np.array([4, 1, 900], np.int32)))
        assert np.isfinite(whole).all()
    firsts = {gumbel(seed, position, np.array([0]))[0] for seed in SEEDS for position in range(50)}
    assert len(firsts) == len(SEEDS) * 50


# Candidate sets


def obvious_candidates(logits: np.ndarray, params: Sampling) -> tuple[set[int], float]:
    """(ids left by top-k, then top-p, closest distance of a cumulated mass to top_p)."""
    ranked = sorted(range(len(logits)), key=lambda i: -logits[i])
    ranked = ranked[: params.top_k or None]
    best = float(logits[ranked[0]])
    weights = [math.exp((float(logits[i]) - best) / params.temperature) for i in ranked]
    total, mass, kept, margin = math.fsum(weights), 0.0, set(), 1.0
    for i, weight in zip(ranked, weights):
        if mass >= params.top_p:
            break
        kept.add(i)
        mass += weight / total
        margin = min(margin, abs(mass - params.top_p))
    return kept, margin


logit = st.floats(-30, 30, width=32)
distinct_logits = st.lists(logit, min_size=2, max_size=24, unique=True).map(lambda x: np.array(x, np.float32))
temperatures = st.sampled_from([0.05, 0.5, 1.0, 1.7, 20.0])


@settings(max_examples=200, deadline=None)
@given(logits=distinct_logits, temperature=temperatures, top_k=st.integers(0, 30), top_p=st.floats(0.01, 1.0))
def test_candidates_are_the_top_k_then_the_least_set_with_mass_top_p(logits, temperature, top_k, top_p):
    params = Sampling(temperature, top_k, top_p)
    kept, margin = obvious_candidates(logits, params)
    assume(margin > 1e-9 or top_p == 1.0)
    ids, scaled = candidates(logits, params)
    assert len(set(ids.tolist())) == len(ids)
    if top_p < 1.0:
        assert set(ids.tolist()) == kept
    else:
        assert len(ids) == min(top_k or len(logits), len(logits)) and set(ids.tolist()) >= kept
    assert scaled == pytest.approx(logits[ids].astype(np.float64) / temperature)


@settings(max_examples=200, deadline=None)
@given(
    logits=distinct_logits,
    temperature=temperatures,
    top_k=st.integers(0, 30),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 1 << 20),
)
def test_sample_is_the_noisiest_of_the_candidates(logits, temperature, top_k, top_p, seed, position):
    params = Sampling(temperature, top_k, top_p, seed)
    if top_p < 1.0:
        kept, margin = obvious_candidates(logits, params)
        assume(margin > 1e-9)
    else:
        kept = set(sorted(range(len(logits)), key=lambda i: -logits[i])[: top_k or None])
    noise = gumbel(seed, position, np.arange(len(logits)))
    best = max(kept, key=lambda i: float(logits[i]) / temperature + noise[i])
    assert sample(logits, position, params) == (int(logits.argmax()) if top_k == 1 else best)


# Pruning


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.floats(-80, 80, width=32), min_size=2, max_size=64).map(lambda x: np.array(x, np.float32)),
    temperature=st.sampled_from([1e-6, 0.01, 0.7, 1.0, 3.0, 100.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 1 << 20),
)
def test_pruning_never_changes_the_token(logits, temperature, seed, position):
    scores = logits.astype(np.float64) / temperature + gumbel(seed, position, np.arange(len(logits)))
    assert sample(logits, position, Sampling(temperature, seed=seed)) == scores.argmax()


@pytest.mark.parametrize("temperature", [0.01, 1.0, 7.0, 100.0])
def test_pruning_keeps_whatever_the_most_extreme_noise_can_lift(monkeypatch, temperature):
    """Lowest noise on the best token and highest on the other: the gap is crossed up to the span and not beyond."""
    half = 2.0**-25
    low, high = -math.log(-math.log(half)), -math.log(-math.log1p(-half))
    monkeypatch.setattr(sampling, "gumbel", lambda seed, position, ids: np.where(ids == 0, low, high))
    for share, winner in ((0.5, 1), (0.9999, 1), (1.0001, 0), (2.0, 0)):
        logits = np.array([0.0, -share * (high - low) * temperature], np.float32)
        assert sample(logits, 0, Sampling(temperature)) == winner


# Greedy and extremes


@pytest.mark.parametrize(
    "params", [Sampling(), Sampling(0.0, 5, 0.3, 7), Sampling(0.9, 1, 1.0, 7), Sampling(2.0, 1, 0.2, 8)]
)
def test_temperature_zero_and_top_k_one_are_greedy(params):
    rng = np.random.default_rng(0)
    for position in range(50):
        logits = rng.normal(size=40).astype(np.float32)
        assert sample(logits, position, params) == logits.argmax()


def test_a_tiny_top_p_leaves_the_best_token():
    logits = np.random.default_rng(0).normal(size=100).astype(np.float32)
    draws = {sample(logits, p, Sampling(50.0, 0, 1e-30, 3)) for p in range(100)}
    assert draws == {int(logits.argmax())}


any_temperature = pytest.mark.parametrize("temperature", [1e-38, 1e-6, 1.0, 100.0])
any_filter = pytest.mark.parametrize("top_k, top_p", [(0, 1.0), (3, 1.0), (0, 0.9), (3, 0.9), (50, 1.0)])


@any_temperature
@any_filter
@pytest.mark.filterwarnings("error")
def test_masked_tokens_are_never_drawn(temperature, top_k, top_p):
    logits = np.full(10, -np.inf, np.float32)
    logits[[2, 7]] = 0.0
    assert {sample(logits, p, Sampling(temperature, top_k, top_p, 5)) for p in range(60)} == {2, 7}


@any_temperature
@any_filter
@pytest.mark.parametrize("best", [1e5, 1e10, 3e38])
def test_a_gap_beyond_all_noise_decides_alone(temperature, top_k, top_p, best):
    logits = np.zeros(10, np.float32)
    logits[4] = best
    assert {sample(logits, p, Sampling(temperature, top_k, top_p, 5)) for p in range(20)} == {4}


def test_a_huge_temperature_is_close_to_uniform():
    logits = np.linspace(-1, 1, 8).astype(np.float32)
    draws = [sample(logits, 0, Sampling(100.0, seed=seed)) for seed in range(3000)]
    weights = np.exp(logits / 100.0)
    assert chi_square_p(np.bincount(draws, minlength=8), weights / weights.sum()) > 1e-4


def test_every_64_bit_seed_gives_its_own_tokens():
    logits = np.zeros(500, np.float32)
    texts = {tuple(sample(logits, p, Sampling(1.0, seed=seed)) for p in range(6)) for seed in SEEDS}
    assert len(texts) == len(SEEDS)
