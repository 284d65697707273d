"""The training loss: forward KL from the target's distribution to the head's, up to the target's own entropy."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def depth_weights(depths: Tensor, gamma: float) -> Tensor:
    """Weight `exp(-(d - 1) / gamma)` of depth `d >= 1`; gamma 0 weighs all depths alike."""
    return torch.exp(-(depths - 1) / gamma) if gamma else torch.ones_like(depths, dtype=torch.float32)


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """The target's likeliest probabilities `(R, K)` at another temperature, their mass unchanged."""
    if temperature == 1.0:
        return probs
    sharp = probs ** (1 / temperature)
    return sharp * (probs.sum(-1, keepdim=True) / sharp.sum(-1, keepdim=True))


class Candidates:
    """The rows of the LM head that one step scores: all that its labels name, and a random sample of the others.

    The sampled rows stand for all the unnamed ones: their logits are raised by `log(unnamed / sampled)`, so the sum of
    exponentials is an unbiased estimate of the whole vocabulary's. `count` 0 scores every row.
    """

    def __init__(self, rng: np.random.Generator, labels: Tensor, size: int, count: int):
        """`labels` are draft vocabulary indices (-1 for none), `size` the draft vocabulary's length."""
        device = labels.device
        named = torch.zeros(size, dtype=torch.bool, device=device)
        named[labels[labels >= 0]] = True
        rest = torch.nonzero(~named)[:, 0]
        take = max(count - (size - len(rest)), size // 32) if count else len(rest)
        take = min(take, len(rest))
        picked = rest[torch.from_numpy(rng.permutation(len(rest))[:take]).to(device)] if take < len(rest) else rest
        self.rows = torch.cat((torch.nonzero(named)[:, 0], picked))
        self.offset = torch.zeros(len(self.rows), device=device)
        if take:
            self.offset[-take:] = math.log(len(rest) / take)
        self.slots = torch.full((size,), -1, device=device)
        self.slots[self.rows] = torch.arange(len(self.rows), device=device)


def soft_cross_entropy(
    hidden: Tensor, lm_head: Tensor, labels: Tensor, probs: Tensor, candidates: Candidates
) -> Tensor:
    """Cross entropy of each row, `(R,)`, from hidden states `(R, H)` and the draft vocabulary's LM head `(V, H)`.

    labels `(R, K)`: draft vocabulary indices of the target's likeliest tokens, -1 outside it; probs `(R, K)`.
    Tokens outside carry no mass and the rest is not renormalised.
    """
    logits = hidden @ lm_head[candidates.rows].T + candidates.offset
    probs = probs * (labels >= 0)
    picked = logits.gather(1, candidates.slots[labels.clamp_min(0)].clamp_min(0))
    return logits.logsumexp(-1) * probs.sum(-1) - (probs * picked).sum(-1)
