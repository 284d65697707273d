"""Calibration converges to true hit rates: of the head by stated probability, of look-ups by match length and view."""

from __future__ import annotations

import numpy as np
import pytest
from jetspec_triton.calibration import ABSENT, FIRST, LISTED, NO_HEAD, Calibration
from jetspec_triton.lookup import MAX_LENGTH

STATED = np.array([0.5, 0.2, 0.1])


def observe(calibration: Calibration, rates, count: int, sampled: bool = False, depth: int = 0, stated=STATED) -> None:
    """rates: chance of each candidate to be the right one."""
    rng = np.random.default_rng(1)
    choices = rng.choice(len(rates) + 1, size=count, p=[*rates, 1 - sum(rates)])
    for choice in choices.tolist():
        calibration.observe_head(sampled, depth, stated, choice if choice < len(rates) else -1)


def head(calibration: Calibration, sampled: bool = False, depths: int = 5, stated=STATED) -> np.ndarray:
    return calibration.head(sampled, np.tile(stated, (depths, 4, 1)))


@pytest.mark.parametrize("rates", [(0.5, 0.2, 0.1), (0.8, 0.1, 0.02), (0.2, 0.1, 0.05)])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_stated_probabilities_become_hit_rates_of_their_depth_and_mode(rates, sampled, depth):
    calibration = Calibration()
    observe(calibration, rates, 5000, sampled, depth)
    probs = head(calibration, sampled)
    assert probs.shape == (5, 4, 3) and (probs == probs[:, :1]).all()
    assert probs[depth, 0] == pytest.approx(rates, abs=0.06)
    others = [d for d in range(5) if min(d, 2) != min(depth, 2)]  # all depths from the third on share their rates
    assert probs[others] == pytest.approx(np.broadcast_to(STATED, (len(others), 4, 3)), abs=1e-6)
    assert head(calibration, not sampled) == pytest.approx(head(Calibration()), abs=1e-6)


def test_a_head_starts_trusted_and_a_change_is_noticed():
    calibration = Calibration()
    assert head(calibration) == pytest.approx(np.broadcast_to(STATED, (5, 4, 3)), abs=1e-6)
    observe(calibration, (0.9, 0.05, 0.01), 3000)
    observe(calibration, (0.2, 0.1, 0.05), 3000)
    assert head(calibration)[0, 0] == pytest.approx((0.2, 0.1, 0.05), abs=0.06)


def test_a_higher_stated_probability_never_counts_less():
    calibration = Calibration()
    observe(calibration, (0.05, 0.6, 0.2), 2000)
    probs = head(calibration)[0, 0]
    assert (np.diff(probs) <= 1e-9).all()


@pytest.mark.parametrize("hit", [0, 1, 2])
def test_probabilities_stay_probabilities(hit):
    calibration = Calibration()
    for stated in np.linspace(0.01, 0.3, 20):
        for _ in range(40):
            calibration.observe_head(False, 0, np.full(3, stated), hit)
    for stated in ([0.33, 0.33, 0.33], [0.9, 0.05, 0.05], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]):
        probs = head(calibration, stated=np.array(stated))
        assert (probs >= 0).all() and (probs.sum(-1) <= 1 + 1e-9).all()


@pytest.mark.parametrize("length", [1, 4, MAX_LENGTH])
@pytest.mark.parametrize("view", [ABSENT, LISTED, FIRST, NO_HEAD])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("sampled", [False, True])
def test_look_up_rates_are_hit_rates(length, view, rate, sampled):
    calibration, before = Calibration(), Calibration()
    for hit in np.random.default_rng(2).random(4000) < rate:
        calibration.observe_lookup(sampled, length, view, bool(hit))
    assert calibration.lookup(sampled, length, view) == pytest.approx(rate, abs=0.06)
    for other in range(1, MAX_LENGTH + 1):
        for its_view in (ABSENT, LISTED, FIRST, NO_HEAD):
            if (other, its_view) != (length, view):
                assert calibration.lookup(sampled, other, its_view) == before.lookup(sampled, other, its_view)
    assert calibration.lookup(not sampled, length, view) == before.lookup(not sampled, length, view)


def test_longer_matches_and_the_heads_consent_are_believed_more_before_any_evidence():
    start = Calibration()
    for view in (ABSENT, LISTED, FIRST, NO_HEAD):
        rates = [start.lookup(False, n, view) for n in range(1, MAX_LENGTH + 1)]
        assert rates == sorted(rates) and 0 < rates[0] < rates[-1] < 1
    assert start.lookup(False, 2, ABSENT) < start.lookup(False, 2, LISTED) < start.lookup(False, 2, FIRST)
