"""`sampling.sample` for many rows at once, on the device where the logits are: the same tokens, in torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .sampling import _BITS, _GOLDEN, _M1, _M2


def _signed(value: np.uint64) -> int:
    return int(value.astype(np.int64))


_S1, _S2, _SGOLDEN = _signed(_M1), _signed(_M2), _signed(_GOLDEN)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64, which stands for uint64 here: products and sums wrap alike."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _S1
    x = (x ^ _shifted(x, 27)) * _S2
    return x ^ _shifted(x, 31)


def gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise, float64 `(M, K)`. seeds, positions: int64 `(M)` (seeds are uint64 bits); tokens: int64 `(M, K)`."""
    key = _mix(seeds * _SGOLDEN + (positions + 1))[:, None]
    bits = _shifted(_mix(_mix(tokens + _SGOLDEN) ^ key), 64 - _BITS)
    return -torch.log(-torch.log((bits.double() + 0.5) * 2.0**-_BITS))


def _filtered(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """(values, ids) `(M, V)` in descending order, minus infinity where top-k or top-p drop them."""
    values, ids = scaled.sort(dim=-1, descending=True, stable=True)
    size = values.shape[1]
    limited = (top_k > 0) & (top_k < size)
    kth = values.gather(1, torch.where(limited, top_k, size)[:, None] - 1)
    kept = values >= kth
    weights = torch.where(kept, (values - values[:, :1]).exp(), 0.0)
    mass_before = weights.cumsum(-1) - weights
    kept &= (mass_before < top_p[:, None] * weights.sum(-1, keepdim=True)) | (top_p[:, None] >= 1.0)
    return values.masked_fill(~kept, -torch.inf), ids


def sample_rows(
    logits: Tensor,
    positions: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    seeds: np.ndarray,
) -> Tensor:
    """Draw one token per row of `logits (M, V)`, int64 `(M)`. The others are host arrays `(M)`, as `sampling.Sampling` has them."""
    device, tokens = logits.device, logits.argmax(-1)
    drawn = (temperature > 0) & (top_k != 1)
    filters = (top_k > 0) | (top_p < 1.0)

    def put(values: np.ndarray, dtype) -> Tensor:
        return torch.from_numpy(values.astype(dtype)).to(device)

    for chosen in (np.flatnonzero(drawn & ~filters), np.flatnonzero(drawn & filters)):
        if not len(chosen):
            continue
        rows = put(chosen, np.int64)
        scaled = logits[rows].double() / put(temperature[chosen], np.float64)[:, None]
        if filters[chosen[0]]:
            scaled, ids = _filtered(scaled, put(top_k[chosen], np.int64), put(top_p[chosen], np.float64))
        else:
            ids = torch.arange(scaled.shape[1], device=device).expand_as(scaled)
        noise = gumbel(put(seeds[chosen].view(np.int64), np.int64), put(positions[chosen], np.int64), ids)
        tokens[rows] = ids.gather(1, (scaled + noise).argmax(-1, keepdim=True))[:, 0]
    return tokens
