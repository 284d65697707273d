"""The walk along the target's tokens against the slow search over all root paths."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.accept import longest_match, walk

from .trees import path_to, rows

FEW = 3  # token ids, so that drafted tokens are often right


@settings(max_examples=200, deadline=None)
@given(row=rows(vocab=FEW, max_drafted=20), data=st.data())
def test_walk_is_the_longest_matching_path_and_one_token_more(row, data):
    count, start = len(row.tokens), row.n_forced - 1
    drawn = data.draw(st.lists(st.integers(0, FEW - 1), min_size=count, max_size=count))
    visited = []

    def draw(node: int) -> int:
        visited.append(node)
        return drawn[node]

    accepted, emitted = walk(row.tokens, row.parents, start, draw)
    assert accepted == longest_match(row.tokens, row.parents, start, drawn)
    assert visited == [start, *accepted]  # each visited node is drawn once, in path order
    assert emitted == [*row.tokens[accepted].tolist(), drawn[visited[-1]]]


@settings(max_examples=100, deadline=None)
@given(row=rows(vocab=8, max_drafted=20), data=st.data())
def test_a_target_that_follows_a_drafted_path_accepts_all_of_it(row, data):
    leaf = data.draw(st.integers(row.n_forced - 1, len(row.tokens) - 1))
    path = path_to(row.parents, leaf)[row.n_forced - 1 :]
    drawn = np.full(len(row.tokens), -1)
    drawn[path[:-1]] = row.tokens[path[1:]]
    accepted, emitted = walk(row.tokens, row.parents, row.n_forced - 1, lambda node: int(drawn[node]))
    assert accepted == path[1:]
    assert emitted == [*row.tokens[path[1:]].tolist(), -1]


def test_a_forced_token_is_never_taken_for_a_draft():
    tokens, parents = np.array([5, 5, 5], np.int32), np.array([-1, 0, 1], np.int32)
    assert walk(tokens, parents, 2, lambda node: 5) == ([], [5])


def test_the_same_token_below_another_parent_is_no_match():
    tokens, parents = np.array([1, 2, 3, 4], np.int32), np.array([-1, 0, 0, 1], np.int32)
    assert walk(tokens, parents, 0, {0: 3, 2: 4}.__getitem__) == ([2], [3, 4])
