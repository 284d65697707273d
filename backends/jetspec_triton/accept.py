"""Acceptance: walk a verified tree along the target's own tokens.

The tree is deterministic given the context, so following the child that carries the token the target drew, and stopping
at the first miss, keeps exactly the target's distribution (greedy: its argmax).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def walk(
    tokens: np.ndarray, parents: np.ndarray, start: int, draw: Callable[[int], int]
) -> tuple[list[int], list[int]]:
    """Walk from node `start`. `draw(node)` gives the target's token after that node and is called once per visited node.

    Returns (accepted nodes in path order, emitted tokens): one token per accepted node, then the bonus token.
    """
    accepted, emitted, node = [], [], start
    while True:
        token = draw(node)
        emitted.append(token)
        children = np.flatnonzero((parents == node) & (tokens == token))
        if not len(children):
            return accepted, emitted
        node = int(children[0])
        accepted.append(node)


def longest_match(tokens: Sequence[int], parents: Sequence[int], start: int, drawn: Sequence[int]) -> list[int]:
    """The oracle of `walk`: among all root paths whose tokens equal what was drawn at their parents, the longest.

    `drawn[i]` is the target's token after node `i`. Slow and obvious; used by tests.
    """
    best: list[int] = []
    for leaf in range(len(tokens)):
        path, node = [], leaf
        while node > start:
            path.append(node)
            node = parents[node]
        path.reverse()
        if node == start and all(tokens[n] == drawn[parents[n]] for n in path) and len(path) > len(best):
            best = path
    return best
