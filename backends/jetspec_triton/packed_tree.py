"""Token trees of several rows as attention kernels read them: bit masks in 32-bit words, rows padded to one width."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .tree import ancestor_mask

WORD = 32


class PackedTrees(NamedTuple):
    """`B` trees of `width` nodes each; a padding node sees only itself and stands at its row's first position.

    Bit `j % 32` of word `j // 32` of a node is set where the node sees node `j` of its own row.
    """

    width: int
    mask: np.ndarray  # (B, width, words) int32
    offsets: np.ndarray  # (B, width) int32, depth below the row's first node
    lengths: np.ndarray  # (B) int32, nodes of a row with its padding: `width`
    places: np.ndarray  # (R) int64, where the ragged nodes stand among the `B * width` padded ones


class RetrievalLinks(NamedTuple):
    """How kernels that verify a tree on the device walk it: nodes by their place in the row, -1 where there is none."""

    index: np.ndarray  # (B, width) int32, each node's own place
    next_token: np.ndarray  # (B, width) int32, its first child
    next_sibling: np.ndarray  # (B, width) int32, the next child of its parent


def padded_width(nodes: int) -> int:
    """The width for a widest row of `nodes`: `width` and `width + 1` bits need equally many words.

    Kernels count a node's words from the width or from one more, depending on the release.
    """
    return nodes + (nodes % WORD == 0)


def pack(parents: np.ndarray, depths: np.ndarray, splits: np.ndarray) -> PackedTrees:
    """parents, depths: int32 `(R)`, inside their row. splits: `(B + 1)` prefix sums of at least one node a row."""
    counts = np.diff(splits)
    rows, width = len(counts), padded_width(int(counts.max()))
    sees = np.zeros((rows, width, -(-width // WORD) * WORD), bool)
    sees[:, np.arange(width), np.arange(width)] = True
    for b, count in enumerate(counts):
        span = slice(splits[b], splits[b + 1])
        sees[b, :count, :count] = ancestor_mask(parents[span], depths[span])
    within = np.arange(splits[-1] - splits[0]) - np.repeat(splits[:-1] - splits[0], counts)
    places = np.repeat(np.arange(rows, dtype=np.int64) * width, counts) + within
    offsets = np.zeros(rows * width, np.int32)
    offsets[places] = depths
    mask = np.packbits(sees, axis=-1, bitorder="little").view("<i4")
    return PackedTrees(width, mask, offsets.reshape(rows, width), np.full(rows, width, np.int32), places)


def retrieval_links(parents: np.ndarray, trees: PackedTrees) -> RetrievalLinks:
    """parents: int32 `(R)`, those that `trees` was packed from. Siblings follow each other in the order of the nodes."""
    shape = trees.offsets.shape
    next_token, next_sibling = np.full((2, shape[0] * shape[1]), -1, np.int32)
    below = np.flatnonzero(parents >= 0)
    nodes = trees.places[below]
    above = nodes // trees.width * trees.width + parents[below]
    order = np.argsort(above, kind="stable")
    nodes, above = nodes[order], above[order]
    first = np.diff(above, prepend=-1) != 0
    next_token[above[first]] = nodes[first] % trees.width
    next_sibling[nodes[:-1][~first[1:]]] = nodes[1:][~first[1:]] % trees.width
    index = np.tile(np.arange(trees.width, dtype=np.int32), (shape[0], 1))
    return RetrievalLinks(index, next_token.reshape(shape), next_sibling.reshape(shape))
