"""Chi-square goodness of fit with the standard library only."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np


def chi_square_p(observed: np.ndarray, probabilities: np.ndarray, least: float = 20.0) -> float:
    """P-value of `observed` counts under `probabilities`; categories that expect less than `least` are pooled.

    Uses the Wilson-Hilferty approximation of the chi-square distribution.
    """
    if observed[probabilities == 0].any():
        return 0.0  # what cannot happen was seen
    expected = observed.sum() * probabilities
    rare = (expected < least) & (probabilities > 0)
    kept = expected >= least
    observed, expected = (np.append(x[kept], x[rare].sum()) if rare.any() else x[kept] for x in (observed, expected))
    freedom = len(observed) - 1
    assert freedom >= 1, "a single category tests nothing"
    statistic, scale = ((observed - expected) ** 2 / expected).sum(), 2 / (9 * freedom)
    return 1 - NormalDist().cdf(((statistic / freedom) ** (1 / 3) - (1 - scale)) / scale**0.5)
