"""The joint budget against enumeration of all nodes, its limits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.budget import NO_CAP, CostCurve, Draft, plan

VOCAB = 6


class Node(NamedTuple):
    probability: float
    token: int
    below: tuple[Node, ...] = ()


class Given(NamedTuple):
    """A proposal whose whole tree is written down."""

    below: tuple[Node, ...]
    cap: int = NO_CAP

    @property
    def root(self):
        return self

    def children(self, node):
        return node.below

    def follow(self, node, child):
        return child


@st.composite
def siblings(draw, depth: int) -> tuple[Node, ...]:
    """Up to 3 distinct tokens whose probabilities sum to at most 1, best first, each with children of its own."""
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), max_size=3, unique=True)) if depth else []
    weights = draw(st.lists(st.floats(0.001, 1), min_size=len(tokens), max_size=len(tokens)))
    total = draw(st.floats(0.05, 1))
    probs = sorted((w / sum(weights) * total for w in weights), reverse=True)
    return tuple(Node(p, t, draw(siblings(depth - 1))) for p, t in zip(probs, tokens))


@st.composite
def proposals(draw, caps=st.one_of(st.just(NO_CAP), st.integers(0, 6))) -> Given:
    return Given(draw(siblings(3)), draw(caps))


@st.composite
def curves(draw, low: int = 1) -> CostCurve:
    rows = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True).map(sorted))
    seconds = draw(st.lists(st.floats(0.2, 5), min_size=len(rows), max_size=len(rows)))
    return CostCurve([0, *rows], [min(seconds), *sorted(seconds)])


def all_nodes(proposal: Given) -> dict[tuple[int, ...], float]:
    """Path probability of every node that could be drafted."""
    nodes: dict[tuple[int, ...], float] = {}

    def visit(below: tuple[Node, ...], path: tuple[int, ...], above: float) -> None:
        for node in below:
            nodes[(*path, node.token)] = above * node.probability
            visit(node.below, (*path, node.token), above * node.probability)

    visit(proposal.below, (), 1.0)
    return nodes


def paths(draft: Draft) -> list[tuple[int, ...]]:
    known = [()]
    for token, parent in zip(draft.tokens, draft.parents):
        known.append((*known[parent], token))
    return known[1:]


def rate_of(drafts: list[Draft], batch: list[Given], cost: CostCurve, base: int) -> float:
    gain, count = float(len(batch)), 0
    for draft, proposal in zip(drafts, batch):
        nodes = all_nodes(proposal)
        gain += sum(nodes[path] for path in paths(draft))
        count += len(draft.tokens)
    return gain / cost.seconds[base + count]


def best_rate(batch: list[Given], cost: CostCurve, base: int, max_nodes: int) -> float:
    """The best over all prefixes of the nodes sorted by path probability, caps respected."""
    ranked = sorted(
        ((p, len(path), s) for s, proposal in enumerate(batch) for path, p in all_nodes(proposal).items()),
        key=lambda node: (-node[0], node[1]),
    )
    used, gain, rates = [0] * len(batch), float(len(batch)), [len(batch) / cost.seconds[min(base, cost.max_rows)]]
    for p, _, s in ranked:
        if used[s] < batch[s].cap and sum(used) < min(max_nodes, cost.max_rows - base):
            used[s] += 1
            gain += p
            rates.append(gain / cost.seconds[base + sum(used)])
    return max(rates)


batches = st.lists(proposals(), min_size=1, max_size=3)


@settings(max_examples=200, deadline=None)
@given(batch=batches, cost=curves(), extra=st.integers(0, 4), max_nodes=st.integers(0, 30))
def test_drafts_are_trees_within_every_limit(batch, cost, extra, max_nodes):
    base = len(batch) + extra
    drafts = plan(batch, cost, base, max_nodes)
    assert len(drafts) == len(batch)
    total = sum(len(d.tokens) for d in drafts)
    assert total <= max_nodes and (total == 0 or base + total <= cost.max_rows)
    for draft, proposal in zip(drafts, batch):
        assert len(draft.tokens) == len(draft.parents) <= proposal.cap
        assert all(0 <= parent <= node for node, parent in enumerate(draft.parents))  # node 0 here is row node 1
        assert len(set(zip(draft.parents, draft.tokens))) == len(draft.tokens)  # siblings differ
        assert set(paths(draft)) <= set(all_nodes(proposal))


@settings(max_examples=200, deadline=None)
@given(batch=batches, cost=curves(), extra=st.integers(0, 4), max_nodes=st.integers(0, 30))
def test_the_plan_has_the_best_expected_rate(batch, cost, extra, max_nodes):
    base = min(len(batch) + extra, cost.max_rows)
    drafts = plan(batch, cost, base, max_nodes)
    assert rate_of(drafts, batch, cost, base) == pytest.approx(best_rate(batch, cost, base, max_nodes), rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(batch=batches, max_nodes=st.integers(0, 60))
def test_a_flat_cost_takes_every_node_it_may(batch, max_nodes):
    drafts = plan(batch, CostCurve.flat(50), len(batch), max_nodes)
    capped = [min(sum(p > 1e-9 for p in all_nodes(proposal).values()), proposal.cap) for proposal in batch]
    assert sum(len(d.tokens) for d in drafts) >= min(sum(capped), max_nodes, 50 - len(batch))


@settings(max_examples=50, deadline=None)
@given(batch=batches)
def test_nothing_is_drafted_when_a_row_costs_more_than_it_can_gain(batch):
    base = len(batch)
    cost = CostCurve([0, base, base + 1, 60], [1.0, 1.0, 2.01, 80.0])  # a row more than doubles the round
    assert plan(batch, cost, base, 50) == [Draft([], [])] * base


def chain(p: float, depth: int = 8) -> Given:
    below: tuple[Node, ...] = ()
    for _ in range(depth):
        below = (Node(p, 1, below),)
    return Given(below)


def test_likelier_sequences_get_more_nodes():
    cost = CostCurve([0, 64], [1.0, 3.0])
    lengths = [len(d.tokens) for d in plan([chain(0.3), chain(0.95), chain(0.7), None], cost, 4, 60)]
    assert lengths[1] > lengths[2] > lengths[0] and lengths[3] == 0


def test_a_crowd_shares_one_budget_down_to_plain_decoding():
    cost = CostCurve([0, 8, 64], [1.0, 1.0, 8.0])  # rows are free up to 8, then dear
    nodes = [sum(len(d.tokens) for d in plan([chain(0.6)] * n, cost, n, 64)) for n in (1, 4, 7, 30)]
    assert nodes[0] >= 6 and nodes[1] == 4 and nodes[2] == 1 and nodes[3] == 0


def test_a_step_in_the_cost_is_crossed_only_if_what_follows_pays():
    """Rows 2..9 cost as much as row 2 alone: worth it together, not worth it for the first one."""
    cost = CostCurve([0, 1, 2, 9], [1.0, 1.0, 2.0, 2.0])
    assert len(plan([chain(0.9)], cost, 1, 64)[0].tokens) == 8
    assert plan([chain(0.9)], cost, 1, 1) == [Draft([], [])]


# The cost curve


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.integers(1, 30), min_size=1, max_size=5, unique=True).map(sorted),
    seconds=st.lists(st.floats(0.1, 9), min_size=6, max_size=6),
)
def test_the_curve_is_monotone_and_its_slope_is_the_cheapest_way_on(rows, seconds):
    curve = CostCurve([0, *rows], seconds[: len(rows) + 1])
    assert curve.max_rows == rows[-1] == len(curve.seconds) - 1
    assert curve.seconds == sorted(curve.seconds)
    for k in range(curve.max_rows):
        ways = [(curve.seconds[j] - curve.seconds[k]) / (j - k) for j in range(k + 1, curve.max_rows + 1)]
        assert curve.slope[k] == pytest.approx(min(ways))
    assert curve.slope[curve.max_rows] == np.inf


def test_the_curve_passes_through_what_was_measured():
    assert CostCurve([0, 1, 4], [1.0, 1.0, 2.5]).seconds == pytest.approx([1.0, 1.0, 1.5, 2.0, 2.5])
