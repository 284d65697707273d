"""Head and look-up in one list, and what a round teaches their calibration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.budget import NO_CAP
from jetspec_triton.calibration import ABSENT, FIRST, LISTED, NO_HEAD, Calibration
from jetspec_triton.candidates import MAX_DEPTH, MOST_CHILDREN, Candidates
from jetspec_triton.lookup import NgramLookup

WIDTH = 3


def lookup_of(text: list[int]) -> NgramLookup:
    lookup = NgramLookup()
    lookup.extend(text)
    return lookup


class Rates(Calibration):
    """A calibration that says what a test wants and records what it is told."""

    def __init__(self, rate: float):
        self.rate, self.asked, self.head_seen, self.lookup_seen = rate, [], [], []

    def head(self, sampled, stated):
        return stated

    def lookup(self, sampled, length, view):
        self.asked.append((length, view))
        return self.rate

    def observe_head(self, sampled, depth, stated, hit):
        self.head_seen.append((sampled, depth, stated.tolist(), hit))

    def observe_lookup(self, sampled, length, view, hit):
        self.lookup_seen.append((length, view, hit))


def candidates(ids, probs, text=(), rate: float = 0.5, **fields) -> Candidates:
    """probs: `(depth, W)` for a head that knows no token above, or `(depth, W + 1, W)`."""
    probs = np.array(probs, float)
    if probs.ndim == 2:
        probs = np.repeat(probs[:, None], probs.shape[1] + 1, axis=1)
    lookup = lookup_of(list(text)) if len(text) else None
    sampled = fields.pop("sampled", False)
    return Candidates(np.array(ids), probs, sampled, lookup, Rates(rate), fields.pop("cap", NO_CAP), **fields)


def descend(c: Candidates, *tokens: int):
    node = c.root
    for token in tokens:
        node = c.follow(node, next(child for child in c.children(node) if child.token == token))
    return node


def listed(c: Candidates, node) -> list[tuple[int, float]]:
    return [(child.token, round(child.probability, 6)) for child in c.children(node)]


def test_the_heads_candidates_depend_on_the_one_above():
    probs = np.zeros((2, 3, 2))
    probs[0] = [0.6, 0.3]
    probs[1] = [[0.1, 0.8], [0.7, 0.2], [0.4, 0.4]]
    c = candidates([[10, 11], [20, 21]], probs)
    assert listed(c, c.root) == [(10, 0.6), (11, 0.3)]
    assert listed(c, descend(c, 10)) == [(21, 0.8), (20, 0.1)]
    assert listed(c, descend(c, 11)) == [(20, 0.7), (21, 0.2)]
    assert c.children(descend(c, 11, 20)) == []


def test_a_looked_up_token_that_the_head_lists_is_one_child_and_the_others_share_the_rest():
    c = candidates([[4, 5]], [[0.5, 0.2]], text=[1, 5, 1], rate=0.6)
    assert listed(c, c.root) == [(5, 0.6), (4, round(0.5 * 0.4 / 0.8, 6))]
    assert c._calibration.asked == [(1, LISTED)]


def test_a_looked_up_token_that_the_head_does_not_list_goes_on_with_the_row_for_any_other():
    probs = np.zeros((2, 3, 2))
    probs[0], probs[1] = [0.5, 0.2], [[0.5, 0.2], [0.5, 0.2], [0.1, 0.3]]
    c = candidates([[4, 5], [6, 7]], probs, text=[1, 9, 8, 2, 1], rate=0.6)
    assert listed(c, c.root) == [(9, 0.6), (4, 0.2), (5, 0.08)]
    below = descend(c, 9)
    assert listed(c, below) == [(8, 0.6), (7, 0.12), (6, 0.04)]
    assert listed(c, descend(c, 9, 8)) == [(2, 0.6)]  # deeper than the head reaches
    assert set(c._calibration.asked) == {(1, ABSENT), (2, ABSENT), (3, NO_HEAD)}


def test_a_sure_look_up_does_not_raise_the_others():
    c = candidates([[4, 5]], [[0.9, 0.05]], text=[1, 4, 1], rate=0.2)
    assert listed(c, c.root) == [(4, 0.2), (5, 0.05)]


def test_a_look_up_starts_anywhere_on_a_path():
    """The text holds nothing after its own end, but knows what follows the head's candidate."""
    c = candidates([[4]], [[0.5]], text=[4, 7, 3], rate=0.6)
    assert listed(c, c.root) == [(4, 0.5)]
    assert listed(c, descend(c, 4)) == [(7, 0.6)]


def test_depth_and_number_of_children_are_limited():
    c = candidates([[4, 5]] * 3, [[0.5, 0.2]] * 3, text=[1, 2] * 30, depth=2)
    assert c.children(descend(c, 4, 4)) == []
    wide = candidates([list(range(20))], [[0.04] * 20])
    assert len(wide.children(wide.root)) == MOST_CHILDREN
    loop = candidates([[9]], [[0.1]], text=[1, 2] * 30)
    assert loop.children(descend(loop, *[1, 2] * (MAX_DEPTH // 2))) == []


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_children_are_distinct_best_first_and_at_most_certain(data):
    depth, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    probs = rng.dirichlet(np.ones(width + 1), size=(depth, width + 1))[..., :width]
    ids = np.stack([rng.permutation(6)[:width] for _ in range(depth)])
    text = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=12))
    c = Candidates(ids, probs, False, lookup_of(text), Calibration(), NO_CAP)
    node = c.root
    for _ in range(5):
        children = c.children(node)
        chances, tokens = [x.probability for x in children], [x.token for x in children]
        assert len(set(tokens)) == len(tokens) and chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1 + 1e-9 and all(chance >= 0 for chance in chances)
        if not children:
            break
        node = c.follow(node, children[data.draw(st.integers(0, len(children) - 1))])


def test_a_round_judges_head_and_look_up_along_what_the_target_said():
    stated = np.zeros((2, 3, 2))
    stated[0], stated[1] = [0.6, 0.3], [[0.1, 0.8], [0.7, 0.2], [0.4, 0.4]]
    c = candidates([[10, 11], [20, 21]], stated, text=[1, 11, 20, 30, 1], sampled=True)
    c.observe([11, 20, 30, 99])
    seen = c._calibration
    assert seen.head_seen == [(True, 0, [0.6, 0.3], 1), (True, 1, [0.7, 0.2], 0)]
    assert seen.lookup_seen == [(1, LISTED, True), (2, FIRST, True), (3, NO_HEAD, True), (4, NO_HEAD, False)]


def test_a_token_that_nobody_foretold_ends_the_judgement_of_the_heads_deeper_rows_fairly():
    stated = np.zeros((2, 3, 2))
    stated[0], stated[1] = [0.6, 0.3], [[0.1, 0.8], [0.7, 0.2], [0.4, 0.4]]
    c = candidates([[10, 11], [20, 21]], stated, text=[1, 11, 1])
    c.observe([50, 21])
    assert c._calibration.head_seen == [(False, 0, [0.6, 0.3], -1), (False, 1, [0.4, 0.4], 1)]
    assert c._calibration.lookup_seen == [(1, LISTED, False)]


@pytest.mark.parametrize("emitted", [[], [10], list(range(100, 100 + 2 * MAX_DEPTH))])
def test_any_length_of_burst_can_be_judged(emitted):
    c = candidates([[10, 11]], [[0.6, 0.3]], text=[1, 2, 1])
    c.observe(emitted)
    assert len(c._calibration.head_seen) == min(len(emitted), 1)
