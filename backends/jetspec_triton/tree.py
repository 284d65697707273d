"""Token trees as flat arrays in topological order: a node's parent always stands before it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Tree(NamedTuple):
    """`tokens`, `parents`, `depths` are int32 `(N,)`. Node 0 is the root: parent -1, depth 0."""

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray

    @classmethod
    def chain(cls, tokens: np.ndarray) -> Tree:
        """The tree without branches, e.g. a chunk of a prompt."""
        index = np.arange(len(tokens), dtype=np.int32)
        return cls(np.asarray(tokens, np.int32), index - 1, index)


def depths_of(parents: np.ndarray, n_forced: int) -> np.ndarray:
    """Depth of every node, int32 `(N,)`; the first `n_forced` nodes are known to be a chain."""
    depths = np.arange(len(parents), dtype=np.int32)
    above = parents[n_forced:]
    drafted = np.zeros(len(above), np.int32)
    while len(above) and (above >= n_forced).any():
        drafted += above >= n_forced
        above = np.where(above >= n_forced, parents[above], above)
    depths[n_forced:] = drafted + depths[np.maximum(above, 0)] + 1
    return depths


def ancestor_mask(parents: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Boolean `(N, N)`: row `i` is True at `i` and at every ancestor of `i`."""
    count = len(parents)
    if count == 0 or depths[-1] == count - 1:  # a chain
        return np.tri(count, dtype=bool)
    mask = np.eye(count, dtype=bool)
    for depth in range(1, int(depths.max()) + 1):
        level = np.flatnonzero(depths == depth)
        mask[level] |= mask[parents[level]]
    return mask
