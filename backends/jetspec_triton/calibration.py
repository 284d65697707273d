"""How often the candidates' stated probabilities came true, learnt online; the budget multiplies by it."""

from __future__ import annotations

import numpy as np

from .lookup import MAX_NGRAM

_DECAY = 0.998  # an observation's weight halves after about 350 later ones
_PRIOR = 8.0  # pseudo-observations at the starting belief


class Calibration:
    """Hit rates per depth: of the head's candidates (relative to their stated mass) and of look-ups (absolute)."""

    def __init__(self, depth: int):
        self.depth = depth
        self._head_hits = np.full((2, depth), _PRIOR * 0.5)  # greedy, sampled
        self._head_mass = np.full((2, depth), _PRIOR * 0.5)
        start = np.linspace(0.2, 0.7, MAX_NGRAM)[:, None] * np.ones(depth)
        self._lookup_hits = _PRIOR * start
        self._lookup_trials = np.full((MAX_NGRAM, depth), _PRIOR)

    def head_factor(self, sampled: bool) -> np.ndarray:
        """`(depth,)`: what the head's stated probabilities are worth at each depth."""
        return self._head_hits[int(sampled)] / self._head_mass[int(sampled)]

    def lookup_rate(self, ngram: int, length: int) -> list[float]:
        """Chance that each of `length` looked-up tokens is right, given that those before it were."""
        return (self._lookup_hits[ngram - 1, :length] / self._lookup_trials[ngram - 1, :length]).tolist()

    def observe_head(self, sampled: bool, stated: np.ndarray, ids: np.ndarray, emitted: list[int]) -> None:
        """stated, ids: `(depth, W)` as the head gave them; emitted: what the target then said."""
        mode = int(sampled)
        for d, token in enumerate(emitted[: self.depth]):
            self._head_hits[mode, d] = _DECAY * self._head_hits[mode, d] + float((ids[d] == token).any())
            self._head_mass[mode, d] = _DECAY * self._head_mass[mode, d] + float(stated[d].sum())

    def observe_lookup(self, ngram: int, chain: list[int], emitted: list[int]) -> None:
        for d, (guess, token) in enumerate(zip(chain, emitted)):
            self._lookup_trials[ngram - 1, d] = _DECAY * self._lookup_trials[ngram - 1, d] + 1
            self._lookup_hits[ngram - 1, d] = _DECAY * self._lookup_hits[ngram - 1, d] + (guess == token)
            if guess != token:
                return
