"""How often the candidates' stated probabilities came true, learnt online; the budget works with the learnt ones."""

from __future__ import annotations

import numpy as np

from .lookup import MAX_LENGTH

_DECAY = 0.998  # an observation's weight halves after about 350 later ones
_PRIOR = 8.0  # pseudo-observations at the starting belief
_KNOTS = np.array([1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96, 1.0])
_DEPTH_CLASSES = 3  # the first depth, the second, all deeper ones
ABSENT, LISTED, FIRST, NO_HEAD = range(4)  # what the head says of a looked-up token


class Calibration:
    """Hit rates of the head's candidates by what it stated, and of looked-up tokens by match length and the head's view.

    Every rate is conditional on the path above being right.
    """

    def __init__(self):
        shape = (2, _DEPTH_CLASSES, len(_KNOTS))  # greedy and sampled requests apart
        self._head_trials = np.full(shape, _PRIOR)
        self._head_hits = self._head_trials * _KNOTS
        lengths = np.arange(MAX_LENGTH + 1) / (np.arange(MAX_LENGTH + 1) + 2.0)
        self._lookup_trials = np.full((2, MAX_LENGTH + 1, 4), _PRIOR)
        self._lookup_hits = self._lookup_trials * lengths[:, None] * np.array([0.6, 0.9, 1.0, 0.8])

    def head(self, sampled: bool, stated: np.ndarray) -> np.ndarray:
        """Probabilities for the head's stated ones `(depth, rows, W)`, each row's sum at most 1."""
        probs = np.empty_like(stated)
        for d in range(min(len(stated), _DEPTH_CLASSES)):
            rates = rising(self._head_hits[int(sampled), d], self._head_trials[int(sampled), d])
            part = slice(d, None if d == _DEPTH_CLASSES - 1 else d + 1)
            probs[part] = np.interp(stated[part], _KNOTS, rates)
        return probs / np.maximum(probs.sum(axis=-1, keepdims=True), 1.0)

    def observe_head(self, sampled: bool, depth: int, stated: np.ndarray, hit: int) -> None:
        """stated: the candidates' probabilities `(W,)` below a path that was right; hit: the right one, -1 for none."""
        hits, trials = (
            table[int(sampled), min(depth, _DEPTH_CLASSES - 1)] for table in (self._head_hits, self._head_trials)
        )
        bins = np.abs(stated[:, None] - _KNOTS).argmin(axis=1)
        decay = _DECAY ** np.bincount(bins, minlength=len(_KNOTS))
        trials *= decay
        hits *= decay
        trials += np.bincount(bins, minlength=len(_KNOTS))
        if hit >= 0:
            hits[bins[hit]] += 1

    def lookup(self, sampled: bool, length: int, view: int) -> float:
        """Chance that a looked-up token after a match of `length` tokens is right."""
        place = int(sampled), length, view
        return self._lookup_hits[place] / self._lookup_trials[place]

    def observe_lookup(self, sampled: bool, length: int, view: int, hit: bool) -> None:
        place = int(sampled), length, view
        self._lookup_trials[place] = _DECAY * self._lookup_trials[place] + 1
        self._lookup_hits[place] = _DECAY * self._lookup_hits[place] + hit


def rising(hits: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The non-decreasing rates nearest to `hits / trials`, each bin weighed by its trials (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # hits, trials, bins
    for pool in zip(hits.tolist(), trials.tolist(), [1] * len(hits)):
        while pools and pools[-1][0] * pool[1] >= pool[0] * pools[-1][1]:
            pool = tuple(a + b for a, b in zip(pools.pop(), pool))
        pools.append(pool)
    return np.repeat([h / t for h, t, _ in pools], [n for _, _, n in pools])
