"""Gumbel-max sampling with noise keyed by (seed, position, token id).

The token at a position depends on the seed and the distribution alone, so a seed gives the same text with and without
speculation, in any batch. Greedy is the case without noise. A draft can rank its candidates with the same noise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# Noise comes from 24 random bits, so it is bounded; tokens further below the best than this can never win.
_BITS = 24
_SPAN = float(-np.log(-np.log1p(-(2.0 ** -(_BITS + 1)))) + np.log(-np.log(2.0 ** -(_BITS + 1))))

_M1, _M2, _GOLDEN = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)


class Sampling(NamedTuple):
    """Parameters of one sequence. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))


def gumbel(seed: int, position: int, tokens: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise, float64, of the shape of `tokens` (non-negative ids)."""
    with np.errstate(over="ignore"):
        key = _mix(np.array([seed], np.uint64) * _GOLDEN + np.uint64(position + 1))
        bits = _mix(_mix(tokens.astype(np.uint64) + _GOLDEN) ^ key) >> np.uint64(64 - _BITS)
    return -np.log(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-_BITS))


def candidates(logits: np.ndarray, params: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """(ids, logits / temperature) of the tokens that top-k and top-p leave. Temperature must be positive."""
    scaled = logits.astype(np.float64) / params.temperature
    if 0 < params.top_k < len(scaled):
        ids = np.flatnonzero(scaled >= np.partition(scaled, -params.top_k)[-params.top_k])
    else:
        ids = np.arange(len(scaled))
    scaled = scaled[ids]
    if params.top_p < 1.0:
        order = np.argsort(-scaled, kind="stable")
        weights = np.exp(scaled[order] - scaled[order[0]])
        mass_before = np.cumsum(weights) - weights
        keep = order[mass_before < params.top_p * weights.sum()]
        ids, scaled = ids[keep], scaled[keep]
    return ids, scaled


def sample(logits: np.ndarray, position: int, params: Sampling) -> int:
    """Draw the token at `position` (0-based index in the sequence) from `logits` `(V,)`."""
    if params.temperature == 0.0 or params.top_k == 1:
        return int(logits.argmax())
    if params.top_p >= 1.0 and params.top_k == 0:
        limit = params.temperature * _SPAN
        ids = np.flatnonzero(logits >= logits.max() - limit * 1.001 - 1e-3)  # the margin covers rounding
        scaled = logits[ids].astype(np.float64) / params.temperature
    else:
        ids, scaled = candidates(logits, params)
    return int(ids[(scaled + gumbel(params.seed, position, ids)).argmax()])
