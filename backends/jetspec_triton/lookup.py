"""Candidates from the sequence's own text: what followed the last occurrence of the n-gram at a node's end."""

from __future__ import annotations

from typing import NamedTuple

MAX_NGRAM = 4
MAX_LENGTH = 16  # matches are told apart up to this length


class Match(NamedTuple):
    """Where a path's end was seen before."""

    next: int  # index in the text of the token that followed there, -1 without a match
    length: int  # tokens up to the path's end that match
    tail: tuple[int, ...]  # the path's last MAX_NGRAM tokens


class NgramLookup:
    """Index of every n-gram (n = 1..MAX_NGRAM) of one sequence, by the position after its latest earlier occurrence."""

    def __init__(self):
        self._ids: list[int] = []
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in range(MAX_NGRAM)]

    def extend(self, tokens: list[int]) -> None:
        """Append tokens. An n-gram is indexed once a token follows it, so the current one never finds itself."""
        ids = self._ids
        for token in tokens:
            end = len(ids)
            for n in range(1, min(MAX_NGRAM, end) + 1):
                self._after[n - 1][tuple(ids[end - n :])] = end
            ids.append(token)

    def match(self) -> Match:
        """The match of the text's own end."""
        ids = self._ids
        found = self._search(tuple(ids[-MAX_NGRAM:]), 0)
        length = found.length
        if length == MAX_NGRAM:
            last = len(ids) - 1
            while length < min(MAX_LENGTH, found.next) and ids[found.next - 1 - length] == ids[last - length]:
                length += 1
        return found._replace(length=length)

    def guess(self, match: Match) -> int | None:
        """The token that a match foretells."""
        return self._ids[match.next] if match.next >= 0 else None

    def follow(self, match: Match, token: int) -> Match:
        """The match one token further down a path. A right guess makes the match longer; another token starts a new search."""
        tail = (*match.tail, token)[-MAX_NGRAM:]
        if match.next < 0 or self._ids[match.next] != token:
            return self._search(tail, 0)
        length = min(match.length + 1, MAX_LENGTH)
        if match.next + 1 < len(self._ids):
            return Match(match.next + 1, length, tail)
        return self._search(tail, length)  # the end of the text: what repeats goes on from an earlier occurrence

    def _search(self, tail: tuple[int, ...], length: int) -> Match:
        """The latest occurrence of the longest known n-gram at the tail's end; `length` is known to match already."""
        for n in range(len(tail), 0, -1):
            start = self._after[n - 1].get(tail[-n:])
            if start is not None:
                return Match(start, max(n, length), tail)
        return Match(-1, 0, tail)
