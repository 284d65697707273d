"""The n-gram index against a search through the whole text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.lookup import MAX_NGRAM, NgramLookup


def search(ids: list[int], depth: int) -> tuple[int, list[int]]:
    """What followed the latest earlier occurrence of the longest n-gram at the end."""
    for n in range(min(MAX_NGRAM, len(ids)), 0, -1):
        for end in range(len(ids) - 1, n - 1, -1):
            if ids[end - n : end] == ids[len(ids) - n :]:
                return n, ids[end : end + depth]
    return 0, []


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8), depth=st.integers(1, 6))
def test_proposals_are_what_followed_the_latest_longest_match(pieces, depth):
    lookup, ids = NgramLookup(), []
    for piece in pieces:
        lookup.extend(piece)
        ids += piece
        assert lookup.propose(depth) == search(ids, depth)


def test_a_text_without_repetition_proposes_nothing():
    lookup = NgramLookup()
    assert lookup.propose(4) == (0, [])
    lookup.extend([1, 2, 3])
    assert lookup.propose(4) == (0, [])


def test_the_longest_match_wins_over_a_later_shorter_one():
    lookup = NgramLookup()
    lookup.extend([1, 2, 7, 7, 7, 9, 2, 8, 1, 2])
    assert lookup.propose(3) == (2, [7, 7, 7])


def test_a_match_next_to_the_end_proposes_what_is_known():
    lookup = NgramLookup()
    lookup.extend([5, 5])
    assert lookup.propose(4) == (1, [5])
