"""What may follow any node of one sequence's tree: the draft head's candidates and the look-up's, in one list."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .calibration import ABSENT, FIRST, LISTED, NO_HEAD, Calibration
from .lookup import Match, NgramLookup

MOST_CHILDREN = 8  # of one node; further ones are hardly ever right
MAX_DEPTH = 32  # of a tree; beyond the head's depth only the look-up drafts


NO_IDS, NOTHING_STATED = np.zeros((0, 1), np.int32), np.zeros((0, 2, 1))


class Node(NamedTuple):
    depth: int  # of its children, 0 below the root
    candidate: int  # its place among the head's candidates of its depth; W for a token the head did not list
    match: Match


class Child(NamedTuple):
    probability: float  # conditional on the node above
    token: int
    candidate: int


class Candidates:
    """ids `(depth, W)` and the probabilities that the head states of them `(depth, W + 1, W)`, indexed by the candidate above
    (row `W`: any other); depth 0 for no head.

    sampled: whether the tokens will be drawn with noise. cap: most drafted nodes of the sequence. depth: most depth of its tree.
    """

    def __init__(
        self,
        ids: np.ndarray,
        stated: np.ndarray,
        sampled: bool,
        lookup: NgramLookup | None,
        calibration: Calibration,
        cap: int,
        depth: int = MAX_DEPTH,
    ):
        self._ids, self._stated, self._sampled = ids.tolist(), stated, sampled
        probs = calibration.head(sampled, stated)
        best = np.argsort(-probs, axis=-1)[..., :MOST_CHILDREN]
        self._best, self._chances = best.tolist(), np.take_along_axis(probs, best, axis=-1).tolist()
        self._listed: dict[tuple[int, int], list[Child]] = {}  # by depth and candidate above
        self._lookup, self._calibration = lookup, calibration
        self._other = ids.shape[1]
        self.cap, self._depth = cap, min(depth, MAX_DEPTH)

    @property
    def from_head(self) -> bool:
        return len(self._ids) > 0

    @property
    def root(self) -> Node:
        return Node(0, self._other, self._lookup.match() if self._lookup else Match(-1, 0, ()))

    def children(self, node: Node) -> list[Child]:
        """Best first, distinct tokens; none at the depth limit."""
        depth, candidate, match = node
        if depth >= self._depth:
            return []
        ids, children = [], []
        if depth < len(self._ids):
            ids, children = self._ids[depth], self._head_children(depth, candidate)
        guess = self._lookup.guess(match) if self._lookup else None
        if guess is None:
            return children
        hit = self._calibration.lookup(self._sampled, match.length, self._view(ids, children, guess))
        known = next((chance for chance, token, _ in children if token == guess), 0.0)
        rest = min((1 - hit) / max(1 - known, 1e-9), 1.0)  # what the look-up leaves to the others, who never gain by it
        mixed = [Child(chance * rest, token, at) for chance, token, at in children if token != guess]
        mixed.append(Child(hit, guess, ids.index(guess) if guess in ids else self._other))
        mixed.sort(reverse=True)
        return mixed

    def _head_children(self, depth: int, candidate: int) -> list[Child]:
        key = depth, candidate
        if key not in self._listed:
            ids, best = self._ids[depth], self._best[depth][candidate]
            self._listed[key] = [Child(p, ids[i], i) for p, i in zip(self._chances[depth][candidate], best)]
        return self._listed[key]

    def follow(self, node: Node, child: Child) -> Node:
        match = self._lookup.follow(node.match, child.token) if self._lookup else node.match
        return Node(node.depth + 1, child.candidate, match)

    @staticmethod
    def _view(ids: list[int], children: list[Child], guess: int) -> int:
        """What the head says of a looked-up token."""
        if not ids:
            return NO_HEAD
        return FIRST if children[0].token == guess else LISTED if guess in ids else ABSENT

    def observe(self, emitted: list[int]) -> None:
        """Judge head and look-up along the tokens that the target emitted."""
        node = self.root
        for token in emitted:
            if node.depth >= MAX_DEPTH:
                return
            candidate, ids, children = self._other, [], []
            if node.depth < len(self._ids):
                ids, children = self._ids[node.depth], self._head_children(node.depth, node.candidate)
                candidate = ids.index(token) if token in ids else self._other
                stated, hit = self._stated[node.depth, node.candidate], candidate if candidate < self._other else -1
                self._calibration.observe_head(self._sampled, node.depth, stated, hit)
            guess = self._lookup.guess(node.match) if self._lookup else None
            if guess is not None:
                view = self._view(ids, children, guess)
                self._calibration.observe_lookup(self._sampled, node.match.length, view, guess == token)
            elif not ids:
                return
            node = self.follow(node, Child(0.0, token, candidate))
