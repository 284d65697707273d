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
