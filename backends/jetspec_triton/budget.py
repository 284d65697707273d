"""The joint budget: one heap over all running sequences, cut where expected tokens per second is highest.

The drafted node with the highest path probability anywhere is popped first, so every prefix of the pops is a set of
trees. A prefix of `k` nodes is expected to emit `sequences + sum of its probabilities` tokens and costs what the measured
curve says for that many rows; the best prefix may be empty, which is plain decoding.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

import numpy as np


class Proposal(Protocol):
    """What may follow one sequence's root; `candidates.Candidates` is the served one."""

    cap: int  # most drafted nodes for this sequence

    @property
    def root(self): ...

    def children(self, node) -> Seq:
        """Children of a node, best first, each with `probability` (conditional on the node) and `token`."""

    def follow(self, node, child):
        """The node that a child becomes once it is drafted."""


class Draft(NamedTuple):
    """Drafted nodes below a root: `parents` counts the root as 0, the first drafted node as 1."""

    tokens: list[int]
    parents: list[int]


NO_CAP = 1 << 30


class CostCurve:
    """Seconds of one round by the number of its rows, made monotone; `slope[k]` is the cheapest way to add rows to `k`.

    draft_seconds: of the draft head's own forward, which a round pays only when a sequence asks for it.
    """

    def __init__(self, rows: Seq[int], seconds: Seq[float], draft_seconds: float = 0.0):
        self.draft_seconds = draft_seconds
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


def plan(
    proposals: Seq[Proposal | None], cost: CostCurve, base_rows: int, max_nodes: int, overhead: float = 0.0
) -> list[Draft]:
    """Choose the drafted nodes of every sequence (None drafts nothing).

    base_rows: rows of the round without any draft. overhead: seconds that the round costs beside its rows.
    """
    drafts = [Draft([], []) for _ in proposals]
    limit = min(max_nodes, cost.max_rows - base_rows)
    heap: list = []
    order = 0  # breaks ties: the earlier entry first

    def push(s: int, parent: int, node, siblings, i: int, above: float) -> None:
        nonlocal order
        order += 1
        heapq.heappush(heap, (-above * siblings[i].probability, order, s, parent, node, siblings, i, above))

    for s, proposal in enumerate(proposals):
        if limit > 0 and proposal is not None and proposal.cap > 0:
            root = proposal.root
            if siblings := proposal.children(root):
                push(s, 0, root, siblings, 0, 1.0)
    gain = float(len(proposals))
    best_rate, best_count = gain / (overhead + cost.seconds[min(base_rows, cost.max_rows)]), 0
    popped: list[int] = []
    while heap and len(popped) < limit:
        negative, _, s, parent, node, siblings, i, above = heapq.heappop(heap)
        probability = -negative
        if probability <= best_rate * cost.slope[base_rows + len(popped)]:
            break  # no longer prefix can beat the best one
        draft, proposal = drafts[s], proposals[s]
        if len(draft.tokens) >= proposal.cap:
            continue
        draft.tokens.append(siblings[i].token)
        draft.parents.append(parent)
        popped.append(s)
        gain += probability
        rate = gain / (overhead + cost.seconds[base_rows + len(popped)])
        if rate > best_rate:
            best_rate, best_count = rate, len(popped)
        if i + 1 < len(siblings):
            push(s, parent, node, siblings, i + 1, above)
        below = proposal.follow(node, siblings[i])
        if children := proposal.children(below):
            push(s, len(draft.tokens), below, children, 0, probability)
    for s in popped[best_count:]:
        drafts[s].tokens.pop()
        drafts[s].parents.pop()
    return drafts
