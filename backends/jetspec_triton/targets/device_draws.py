"""Every wanted node of a step sampled at once, on the device where the logits are; only tokens come to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ..device_sampling import sample_rows
from .base import Draws, Forward, Wanted

if TYPE_CHECKING:
    from ..step import StepBatch


def draws_on_device(batch: StepBatch, wanted: Wanted, out: Forward) -> Draws:
    """`TargetEngine.draws` for logits `(M, V)` float32 and `log_norm (M)` that are tensors."""
    logits = _without_banned(batch, wanted, out.logits)
    params = (batch.temperature, batch.top_k, batch.top_p, batch.seeds)
    tokens = sample_rows(logits, wanted.positions, *(values[wanted.owners] for values in params))
    log_probs = out.logits.gather(1, tokens[:, None])[:, 0] - out.log_norm
    return list(zip(tokens.tolist(), log_probs.tolist())).__getitem__


def _without_banned(batch: StepBatch, wanted: Wanted, logits: torch.Tensor) -> torch.Tensor:
    counts = np.diff(batch.banned_splits)[wanted.owners]
    counts = np.where(wanted.positions < batch.banned_until[wanted.owners], counts, 0)
    if not counts.any():
        return logits
    ids = [batch.banned[start : start + n] for start, n in zip(batch.banned_splits[wanted.owners], counts)]
    rows = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(logits.device)
    columns = torch.from_numpy(np.concatenate(ids).astype(np.int64)).to(logits.device)
    return logits.index_put((rows, columns), logits.new_tensor(-torch.inf))
