"""Candidates from the sequence's own text: what followed the last occurrence of its current n-gram."""

from __future__ import annotations

MAX_NGRAM = 4


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

    def propose(self, depth: int) -> tuple[int, list[int]]:
        """(n, up to `depth` tokens that followed the longest known n-gram at the end); (0, []) without a match."""
        ids = self._ids
        for n in range(min(MAX_NGRAM, len(ids)), 0, -1):
            start = self._after[n - 1].get(tuple(ids[-n:]))
            if start is not None:
                return n, ids[start : start + depth]
        return 0, []
