"""The head is asked as long as it pays, per sequence."""

from __future__ import annotations

import pytest
from jetspec_triton.payoff import Payoff

PLAIN, HEAD = 1.0, 0.2  # seconds of a plain round, of the head's forward


def play(payoff: Payoff, rounds: int, tokens_with_head, tokens_without=lambda i: 1) -> list[bool]:
    """Which rounds asked the head. A round's draft was asked for in the round before."""
    asked, proposed = [], payoff.on
    for i in range(rounds):
        asked.append(payoff.on)
        tokens = tokens_with_head(i) if proposed else tokens_without(i)
        share, proposed_next = PLAIN + HEAD * payoff.on, payoff.on
        payoff.observe(tokens, share, PLAIN, proposed)
        proposed = proposed_next
    return asked


def test_a_head_that_pays_is_never_left():
    assert all(play(Payoff(), 400, lambda i: 1 + (i % 2)))


def test_a_head_that_does_not_pay_is_left_and_tried_again_less_and_less_often():
    asked = play(Payoff(), 2000, lambda i: 1)
    assert all(asked[:11])
    assert sum(asked[1000:]) < 0.1 * 1000  # a few per cent of rounds pay the head's 20 %
    assert sum(asked[1000:]) > 0  # and yet it is tried
    pauses = "".join("x" if a else "." for a in asked).split("x")
    lengths = [len(p) for p in pauses if p]
    assert lengths[:3] == sorted(lengths[:3]) and lengths[0] < lengths[2]


def test_a_head_that_starts_to_pay_is_found():
    asked = play(Payoff(), 1500, lambda i: 1 if i < 300 else 2)
    assert not all(asked[:300]) and all(asked[-400:])


def test_a_head_that_stops_paying_is_left():
    asked = play(Payoff(), 300, lambda i: 2 if i < 100 else 1)
    assert all(asked[:100]) and sum(asked[100:]) < 60


def test_a_look_up_that_does_as_well_alone_makes_the_head_not_worth_it():
    asked = play(Payoff(), 600, lambda i: 1 if i < 20 else 2, lambda i: 2)
    assert sum(asked[200:]) < 60


@pytest.mark.parametrize("seconds", [0.0, 1e-30])
def test_a_cost_of_nothing_is_no_error(seconds):
    payoff = Payoff()
    for _ in range(100):
        payoff.observe(1, seconds, seconds, payoff.on)
