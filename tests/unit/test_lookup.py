"""The n-gram index against a search through the whole text."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.lookup import MAX_LENGTH, MAX_NGRAM, Match, NgramLookup


def search(ids: list[int], path: list[int]) -> tuple[int, int]:
    """(index after the latest occurrence inside `ids` of the longest n-gram at the end of `path`, n); (-1, 0) for none."""
    for n in range(min(MAX_NGRAM, len(path)), 0, -1):
        for end in range(len(ids) - 1, n - 1, -1):
            if ids[end - n : end] == path[len(path) - n :]:
                return end, n
    return -1, 0


def built(ids: list[int]) -> NgramLookup:
    lookup = NgramLookup()
    lookup.extend(ids)
    return lookup


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_the_root_matches_the_latest_occurrence_of_the_longest_n_gram(pieces):
    lookup, ids = NgramLookup(), []
    for piece in pieces:
        lookup.extend(piece)
        ids += piece
        match = lookup.match()
        place, n = search(ids, ids)
        assert match.next == place and lookup.guess(match) == (ids[place] if n else None)
        assert match.length == n or match.length > n == MAX_NGRAM
        length = match.length  # tokens before both ends agree, and no more than that do
        assert ids[place - length : place] == ids[len(ids) - length :]
        assert length == MAX_LENGTH or n < MAX_NGRAM or place == length or ids[place - length - 1] != ids[-length - 1]


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=20), path=st.lists(st.integers(0, 3), max_size=8))
def test_a_path_goes_on_along_its_match_or_searches_again(ids, path):
    lookup = built(ids)
    match = lookup.match()
    for i, token in enumerate(path):
        before, guess = match, lookup.guess(match)
        match = lookup.follow(match, token)
        text = ids + path[: i + 1]
        assert match.tail == tuple(text[-MAX_NGRAM:])
        if guess == token and before.next + 1 < len(ids):
            assert match == Match(before.next + 1, min(before.length + 1, MAX_LENGTH), match.tail)
        else:
            place, n = search(ids, text)
            carried = min(before.length + 1, MAX_LENGTH) if guess == token and n else 0
            assert (match.next, match.length) == (place, max(n, carried))


def test_a_text_without_repetition_foretells_nothing():
    assert built([]).match() == Match(-1, 0, ())
    lookup = built([1, 2, 3])
    assert lookup.guess(lookup.match()) is None


def test_the_longest_match_wins_over_a_later_shorter_one():
    lookup = built([1, 2, 7, 7, 7, 9, 2, 8, 1, 2])
    assert lookup.match()[:2] == (2, 2) and lookup.guess(lookup.match()) == 7


def test_a_loop_is_foretold_beyond_the_end_of_the_text():
    lookup = built([5, 1, 2, 3, 1, 2, 3])
    match, said = lookup.match(), []
    for _ in range(9):
        said.append(lookup.guess(match))
        match = lookup.follow(match, said[-1])
    assert said == [1, 2, 3] * 3 and match.length == 12
