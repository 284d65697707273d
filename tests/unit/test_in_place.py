"""How a ragged step is laid out for an in-place graph, against the obvious loops."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from jetspec_triton.in_place import Window, block_mask, cache_length, tree_mask
from jetspec_triton.tree import ancestor_mask

from .trees import rows as tree_rows


@given(st.data())
def test_a_window_holds_its_rows_and_few_windows_exist(data):
    total = data.draw(st.integers(1, 20))
    slots = np.array(data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=total, unique=True)))
    counts = np.array(data.draw(st.lists(st.integers(0, 50), min_size=len(slots), max_size=len(slots))))
    window = Window.cover(slots, counts, total, 50)
    assert 0 <= window.first <= slots.min() and slots.max() < window.first + window.slots <= total
    assert max(counts.max(), 1) <= window.rows <= 50
    assert window.rows == 50 or window.rows & (window.rows - 1) == 0
    size = 1 << (window.slots - 1).bit_length()
    assert window.first % size == 0 and (window.slots == size or window.first + window.slots == total)
    expected = [(slot - window.first) * window.rows + i for slot, n in zip(slots, counts) for i in range(n)]
    assert window.places(slots, counts).tolist() == expected


@given(row=tree_rows(vocab=9, max_forced=3, max_drafted=7), length=st.integers(0, 6))
def test_a_node_sees_committed_rows_and_its_ancestors(row, length):
    parents, count, size = row.parents, len(row.parents), 32
    depths = np.array([sum(1 for _ in _ancestors(parents, n)) for n in range(count)])
    own = torch.from_numpy(ancestor_mask(parents, depths))
    lengths = torch.tensor([length, 3])
    mask = tree_mask(torch.stack((own, torch.eye(count, dtype=torch.bool))), lengths, size)
    assert mask.shape == (2, 1, count, size)
    for node in range(count):
        seen = set(range(length)) | {length + a for a in (node, *_ancestors(parents, node))}
        assert set(mask[0, 0, node].nonzero()[:, 0].tolist()) == seen
        assert set(mask[1, 0, node].nonzero()[:, 0].tolist()) == {0, 1, 2, 3 + node}


def _ancestors(parents, node):
    while (node := int(parents[node])) >= 0:
        yield node


def test_a_block_sees_its_context_and_not_the_padding():
    mask = block_mask(torch.tensor([2, 5]), torch.tensor([3, 0]), context_rows=4, block=3, cache_rows=16)
    for b, context in enumerate((range(5), range(5))):
        first = (2, 5)[b] + 4
        for i in range(3):
            assert mask[b, 0, i].nonzero()[:, 0].tolist() == [*context, *range(first, first + i + 1)]


def test_a_cache_takes_the_longest_step_behind_a_full_context():
    assert cache_length(2048, 64) == 2112 and cache_length(96, 40, 5) == 192
