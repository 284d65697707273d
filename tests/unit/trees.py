"""Random rows for property tests: a forced chain with drafted nodes, siblings always distinct."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st


class Row(NamedTuple):
    tokens: np.ndarray  # (N) int32
    parents: np.ndarray  # (N) int32
    n_forced: int


@st.composite
def rows(draw, vocab: int = 64, max_forced: int = 6, max_drafted: int = 14, below_any: bool = False) -> Row:
    """Drafted nodes hang below the last forced node; `below_any` lets them hang below every forced node."""
    forced = draw(st.integers(1, max_forced))
    parents = list(range(-1, forced - 1))
    tokens = draw(st.lists(st.integers(0, vocab - 1), min_size=forced, max_size=forced))
    for _ in range(draw(st.integers(0, max_drafted))):
        parent = draw(st.integers(0 if below_any else forced - 1, len(parents) - 1))
        free = sorted(set(range(vocab)) - {t for t, p in zip(tokens, parents) if p == parent})
        if free:
            tokens.append(draw(st.sampled_from(free)))
            parents.append(parent)
    return Row(np.array(tokens, np.int32), np.array(parents, np.int32), forced)


def path_to(parents, node: int) -> list[int]:
    """Nodes from the row's first node down to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return path[::-1]
