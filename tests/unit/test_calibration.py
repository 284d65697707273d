"""Calibration converges to true hit rates, per depth, per mode, per n-gram length."""

from __future__ import annotations

import numpy as np
import pytest
from jetspec_triton.calibration import Calibration
from jetspec_triton.lookup import MAX_NGRAM

DEPTH, WIDTH = 4, 3
IDS = np.tile(np.arange(WIDTH), (DEPTH, 1))  # candidates 0, 1, 2; anything else is a miss
STATED = np.tile([0.5, 0.2, 0.1], (DEPTH, 1))  # 0.8 in all


def observe(calibration: Calibration, rates: list[float], rounds: int, sampled: bool = False) -> None:
    """Rounds whose token at depth `d` is a candidate with chance `rates[d]`; a miss ends what is emitted."""
    rng = np.random.default_rng(1)
    for _ in range(rounds):
        emitted = []
        for rate in rates:
            hit = rng.random() < rate
            emitted.append(int(rng.integers(WIDTH)) if hit else 99)
            if not hit:
                break
        calibration.observe_head(sampled, STATED, IDS, emitted)


@pytest.mark.parametrize("rates", [[0.9, 0.9, 0.9, 0.9], [0.8, 0.6, 0.5, 0.7], [0.3, 0.9, 0.9, 0.9]])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_heads_stated_mass_is_scaled_to_its_true_hit_rate(rates, sampled):
    calibration = Calibration(DEPTH)
    observe(calibration, rates, 6000, sampled)
    assert calibration.head_factor(sampled) * 0.8 == pytest.approx(rates, abs=0.08)
    assert calibration.head_factor(not sampled).tolist() == [1.0] * DEPTH


def test_a_head_starts_trusted_and_a_change_is_noticed():
    calibration = Calibration(DEPTH)
    assert calibration.head_factor(False).tolist() == [1.0] * DEPTH
    observe(calibration, [0.9] * DEPTH, 3000)
    observe(calibration, [0.2] * DEPTH, 3000)
    assert calibration.head_factor(False)[0] * 0.8 == pytest.approx(0.2, abs=0.08)


def test_depths_behind_the_bonus_token_are_not_judged():
    calibration = Calibration(DEPTH)
    for _ in range(50):
        calibration.observe_head(False, STATED, IDS, [99])
    factors = calibration.head_factor(False)
    assert factors[0] < 0.2 and factors[1:].tolist() == [1.0] * (DEPTH - 1)


def test_a_burst_longer_than_the_depth_is_judged_up_to_the_depth():
    calibration = Calibration(DEPTH)
    calibration.observe_head(False, STATED, IDS, [0] * (DEPTH + 1))
    assert (calibration.head_factor(False) > 1.0).all()


@pytest.mark.parametrize("ngram", range(1, MAX_NGRAM + 1))
def test_look_up_rates_are_conditional_hit_rates(ngram):
    rates, rng = [0.8, 0.5, 0.9, 0.3], np.random.default_rng(2)
    calibration, chain = Calibration(DEPTH), [10, 11, 12, 13]
    before = {n: calibration.lookup_rate(n, DEPTH) for n in range(1, MAX_NGRAM + 1)}
    for _ in range(6000):
        emitted = []
        for guess, rate in zip(chain, rates):
            emitted.append(guess if rng.random() < rate else 99)
            if emitted[-1] == 99:
                break
        calibration.observe_lookup(ngram, chain, emitted)
    assert calibration.lookup_rate(ngram, DEPTH) == pytest.approx(rates, abs=0.1)
    assert calibration.lookup_rate(ngram, 2) == calibration.lookup_rate(ngram, DEPTH)[:2]
    for other in set(before) - {ngram}:
        assert calibration.lookup_rate(other, DEPTH) == before[other]


def test_what_follows_a_wrong_guess_is_not_judged():
    """The text may go on along another branch; the rest of the chain was then never on trial."""
    calibration = Calibration(DEPTH)
    before = calibration.lookup_rate(2, DEPTH)
    calibration.observe_lookup(2, [10, 11, 12, 13], [10, 99, 12, 50])
    after = calibration.lookup_rate(2, DEPTH)
    assert after[0] > before[0] and after[1] < before[1] and after[2:] == before[2:]


def test_longer_n_grams_are_believed_more_before_any_evidence():
    starts = [Calibration(DEPTH).lookup_rate(n, 1)[0] for n in range(1, MAX_NGRAM + 1)]
    assert starts == sorted(starts) and 0 < starts[0] < starts[-1] < 1
