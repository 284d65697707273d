"""The joint budget: one heap over all running sequences, cut where expected tokens per second is highest.

The drafted node with the highest path probability anywhere is popped first, so every prefix of the pops is a set of
trees. A prefix of `k` nodes is expected to emit `sequences + sum of its probabilities` tokens and costs what the measured
curve says for that many rows; the best prefix may be empty, which is plain decoding.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np


class Proposal(NamedTuple):
    """What may follow one sequence's root. Probabilities are calibrated and conditional on the path so far."""

    ids: list[list[int]]  # per depth, best first
    probs: list[list[float]]
    chain: list[int]  # looked-up continuation from the root
    chain_probs: list[float]
    cap: int  # most drafted nodes for this sequence


class Draft(NamedTuple):
    """Drafted nodes below a root: `parents` counts the root as 0, the first drafted node as 1."""

    tokens: list[int]
    parents: list[int]


NO_CAP = 1 << 30
NO_PROPOSAL = Proposal([], [], [], [], 0)


class CostCurve:
    """Seconds of one round by the number of its rows, made monotone; `slope[k]` is the cheapest way to add rows to `k`."""

    def __init__(self, rows: Seq[int], seconds: Seq[float]):
        grid = np.arange(max(rows) + 1)
        curve = np.maximum.accumulate(np.interp(grid, rows, seconds))
        self.seconds = curve.tolist()
        self.slope = [float(((curve[k + 1 :] - curve[k]) / (grid[k + 1 :] - k)).min()) for k in grid[:-1]] + [np.inf]

    @property
    def max_rows(self) -> int:
        return len(self.seconds) - 1

    @classmethod
    def flat(cls, max_rows: int) -> CostCurve:
        """Every round costs the same: the budget then takes all it may."""
        return cls([0, max_rows], [1.0, 1.0])


def plan(proposals: Seq[Proposal], cost: CostCurve, base_rows: int, max_nodes: int) -> list[Draft]:
    """Choose the drafted nodes of every sequence. `base_rows` are the rows of the round without any draft."""
    drafts = [Draft([], []) for _ in proposals]
    limit = min(max_nodes, cost.max_rows - base_rows)
    heap: list = []
    order = 0
    for s, proposal in enumerate(proposals):
        if proposal.cap > 0 and (siblings := _children(proposal, 0, True)):
            heap.append((-siblings[0][0], order, s, 0, 0, siblings, 0, 1.0))
            order += 1
    heapq.heapify(heap)
    gain = float(len(proposals))
    best_rate, best_count = gain / cost.seconds[min(base_rows, cost.max_rows)], 0
    popped: list[int] = []
    while heap and len(popped) < limit:
        negative, _, s, parent, depth, siblings, i, above = heapq.heappop(heap)
        probability = -negative
        if probability <= best_rate * cost.slope[base_rows + len(popped)]:
            break  # no longer prefix can beat the best one
        draft, proposal = drafts[s], proposals[s]
        if len(draft.tokens) >= proposal.cap:
            continue
        _, token, on_chain = siblings[i]
        draft.tokens.append(token)
        draft.parents.append(parent)
        popped.append(s)
        gain += probability
        rate = gain / cost.seconds[base_rows + len(popped)]
        if rate > best_rate:
            best_rate, best_count = rate, len(popped)
        if i + 1 < len(siblings):
            heapq.heappush(heap, (-above * siblings[i + 1][0], order, s, parent, depth, siblings, i + 1, above))
        if children := _children(proposal, depth + 1, on_chain):
            order += 1
            entry = (-probability * children[0][0], order, s, len(draft.tokens), depth + 1, children, 0, probability)
            heapq.heappush(heap, entry)
        order += 1
    for s in popped[best_count:]:
        drafts[s].tokens.pop()
        drafts[s].parents.pop()
    return drafts


def _children(proposal: Proposal, depth: int, on_chain: bool) -> list[tuple[float, int, bool]]:
    """(probability, token, still on the chain) of a node's children, best first: the head's and the look-up's mixed."""
    ids = proposal.ids[depth] if depth < len(proposal.ids) else []
    probs = proposal.probs[depth] if ids else []
    if not (on_chain and depth < len(proposal.chain)):
        return [(p, token, False) for p, token in zip(probs, ids)]
    hit, guess = proposal.chain_probs[depth], proposal.chain[depth]
    mixed = [((1 - hit) * p + (hit if token == guess else 0.0), token, token == guess) for p, token in zip(probs, ids)]
    if guess not in ids:
        mixed.append((hit, guess, True))
    mixed.sort(key=lambda child: -child[0])
    return mixed
