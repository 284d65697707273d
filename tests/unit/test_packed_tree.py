"""Packed masks against an oracle that asks for every pair of nodes whether one is the other's ancestor; the links, too."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.accept import walk
from jetspec_triton.packed_tree import WORD, pack, padded_width, retrieval_links
from jetspec_triton.tree import depths_of

from .trees import path_to


@st.composite
def trees(draw, most: int = 256) -> np.ndarray:
    """Parents of a tree of up to `most` nodes: bushy, narrow or a chain."""
    nodes = draw(st.one_of(st.integers(1, 40), st.sampled_from([31, 32, 33, 63, 64, 65, 255, most])))
    reach = draw(st.sampled_from([1, 3, nodes]))  # how far back a parent may stand
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return np.array([-1] + [int(rng.integers(max(0, i - reach), i)) for i in range(1, nodes)], np.int32)


def packed(rows: list[np.ndarray]):
    splits = np.concatenate(([0], np.cumsum([len(r) for r in rows]))).astype(np.int32)
    depths = np.concatenate([depths_of(r, 1) for r in rows])
    return pack(np.concatenate(rows), depths, splits), depths


def sees(mask: np.ndarray, node: int, other: int) -> bool:
    """Bit by bit, as a kernel reads one row's `(width, words)` int32 words."""
    return bool((int(mask[node, other // WORD]) & 0xFFFFFFFF) >> (other % WORD) & 1)


@settings(deadline=None, max_examples=40)
@given(st.lists(trees(), min_size=1, max_size=4))
def test_every_bit_is_that_of_the_oracle(rows):
    out, _ = packed(rows)
    words = out.mask.shape[2]
    for parents, mask in zip(rows, out.mask):
        for node in range(out.width):
            seen = set(path_to(parents, node)) if node < len(parents) else {node}
            assert {j for j in range(words * WORD) if sees(mask, node, j)} == seen


@settings(deadline=None)
@given(st.lists(trees(), min_size=1, max_size=5))
def test_shapes_offsets_and_places(rows):
    out, depths = packed(rows)
    widest, count = max(len(r) for r in rows), len(rows)
    assert out.width in (widest, widest + 1) and out.lengths.tolist() == [out.width] * count
    assert out.mask.shape == (count, out.width, -(-out.width // WORD)) and out.mask.dtype == np.int32
    assert out.offsets.shape == (count, out.width) and out.offsets.dtype == np.int32
    assert np.array_equal(out.offsets.reshape(-1)[out.places], depths)
    assert out.offsets.sum() == depths.sum()  # padding stands at offset 0
    expected = [b * out.width + i for b, r in enumerate(rows) for i in range(len(r))]
    assert out.places.tolist() == expected


def test_either_way_of_counting_words_reads_the_same_rows():
    for nodes in range(1, 300):
        width = padded_width(nodes)
        assert nodes <= width <= nodes + 1
        assert -(-width // WORD) == -(-(width + 1) // WORD)


def test_a_chain_and_a_branch_by_hand():
    chain, branch = np.array([-1, 0, 1], np.int32), np.array([-1, 0, 0], np.int32)
    out, _ = packed([chain, branch])
    assert out.mask[:, :, 0].tolist() == [[1, 3, 7], [1, 3, 5]]
    assert out.offsets.tolist() == [[0, 1, 2], [0, 1, 1]]


def test_the_highest_bit_makes_a_word_negative():
    out, _ = packed([np.arange(-1, 32, dtype=np.int32)])
    assert out.mask[0, 31].tolist() == [-1, 0] and out.mask[0, 32].tolist() == [-1, 1]


@settings(deadline=None, max_examples=40)
@given(st.lists(trees(), min_size=1, max_size=4))
def test_every_link_is_that_of_the_oracle(rows):
    """Parents read bit by bit: the last node, other than itself, that a node sees."""
    out, _ = packed(rows)
    links = retrieval_links(np.concatenate(rows), out)
    for array in links:
        assert array.shape == (len(rows), out.width) and array.dtype == np.int32
    assert np.array_equal(links.index, np.tile(np.arange(out.width), (len(rows), 1)))
    for b, parents in enumerate(rows):
        first, sibling, last = np.full((3, out.width), -1)
        for node in range(1, len(parents)):
            parent = next(j for j in range(node - 1, -1, -1) if sees(out.mask[b], node, j))
            if last[parent] < 0:
                first[parent] = node
            else:
                sibling[last[parent]] = node
            last[parent] = node
        assert np.array_equal(links.next_token[b], first) and np.array_equal(links.next_sibling[b], sibling)


@settings(deadline=None, max_examples=60)
@given(st.lists(trees(), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_a_walk_along_the_links_accepts_what_ours_accepts(rows, seed):
    """Children, then siblings, until one is the token that the target says after the last accepted node."""
    out, _ = packed(rows)
    links, rng = retrieval_links(np.concatenate(rows), out), np.random.default_rng(seed)
    for b, parents in enumerate(rows):
        tokens, says = np.empty(len(parents), np.int32), np.empty(len(parents), np.int32)
        for node, parent in enumerate(parents):
            tokens[node] = sum(parents[:node] == parent)  # siblings differ
        for node in range(len(parents)):
            says[node] = rng.integers(max(int(sum(parents == node)), 1) + 1)
        accepted, at = [], 0
        while True:
            child = links.next_token[b, at]
            while child >= 0 and tokens[child] != says[at]:
                child = links.next_sibling[b, child]
            if child < 0:
                break
            at = links.index[b, child]
            accepted.append(int(at))
        assert accepted == [int(i) for i in walk(tokens, parents, 0, lambda node: int(says[node]))[0]]


def test_links_by_hand():
    chain, branch = np.array([-1, 0, 1], np.int32), np.array([-1, 0, 0, 1, 0], np.int32)
    links = retrieval_links(np.concatenate((chain, branch)), packed([chain, branch])[0])
    assert links.next_token.tolist() == [[1, 2, -1, -1, -1], [1, 3, -1, -1, -1]]
    assert links.next_sibling.tolist() == [[-1, -1, -1, -1, -1], [-1, 2, 4, -1, -1]]
