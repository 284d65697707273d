"""Depths and ancestor masks against walking up from every node."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from jetspec_triton.tree import Tree, ancestor_mask, depths_of

from .trees import path_to, rows


def obvious_depths(parents) -> list[int]:
    return [len(path_to(parents, node)) - 1 for node in range(len(parents))]


def obvious_mask(parents) -> np.ndarray:
    mask = np.zeros((len(parents), len(parents)), bool)
    for node in range(len(parents)):
        mask[node, path_to(parents, node)] = True
    return mask


@settings(max_examples=150, deadline=None)
@given(row=rows(below_any=True, max_drafted=20))
def test_depths_are_path_lengths(row):
    depths = depths_of(row.parents, row.n_forced)
    assert depths.tolist() == obvious_depths(row.parents)
    assert depths.dtype == np.int32


@settings(max_examples=150, deadline=None)
@given(row=rows(below_any=True, max_drafted=20))
def test_a_node_sees_itself_and_its_ancestors_only(row):
    mask = ancestor_mask(row.parents, np.array(obvious_depths(row.parents), np.int32))
    assert mask.dtype == bool
    assert np.array_equal(mask, obvious_mask(row.parents))


@settings(max_examples=50, deadline=None)
@given(row=rows(max_forced=1, max_drafted=20))
def test_depths_do_not_depend_on_how_much_of_a_chain_is_declared_forced(row):
    """A chain in front of the row, declared forced in full or only by its first node, has the same depths."""
    chain = 4
    parents = np.concatenate((np.arange(-1, chain - 1), np.where(row.parents < 0, chain - 1, row.parents + chain)))
    parents = parents.astype(np.int32)
    assert depths_of(parents, 1).tolist() == depths_of(parents, chain + 1).tolist() == obvious_depths(parents)


def test_an_empty_row_has_an_empty_mask():
    assert ancestor_mask(np.zeros(0, np.int32), np.zeros(0, np.int32)).shape == (0, 0)


def test_a_branch_that_ends_deepest_but_not_alone_is_no_chain():
    parents = np.array([-1, 0, 0, 2], np.int32)  # the last node is two deep in a row of four
    assert ancestor_mask(parents, depths_of(parents, 1))[3].tolist() == [True, False, True, True]


def test_chain_is_the_tree_without_branches():
    tree = Tree.chain(np.array([7, 7, 9]))
    assert tree.tokens.tolist() == [7, 7, 9]
    assert tree.parents.tolist() == [-1, 0, 1]
    assert tree.depths.tolist() == [0, 1, 2] == depths_of(tree.parents, 1).tolist()
