"""Step batches from plain rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import StepBatch


class BatchRow(NamedTuple):
    slot: int
    length: int  # rows the slot has committed
    tokens: list[int]
    parents: list[int]
    n_forced: int = 1
    emit: bool = True
    sampling: Sampling = Sampling()
    banned: tuple[int, ...] = ()
    banned_until: int = 0
    draft: bool = True


def chain_row(slot: int, length: int, tokens: list[int], **fields) -> BatchRow:
    """A forced chain: a chunk of a prompt or, of one token, plain decoding."""
    return BatchRow(slot, length, list(tokens), list(range(-1, len(tokens) - 1)), len(tokens), **fields)


def step_batch(rows: list[BatchRow]) -> StepBatch:
    def column(values, dtype=np.int32) -> np.ndarray:
        return np.array(list(values), dtype)

    def splits(lists) -> np.ndarray:
        return np.concatenate(([0], np.cumsum([len(x) for x in lists]))).astype(np.int32)

    return StepBatch(
        slots=column(r.slot for r in rows),
        lengths=column(r.length for r in rows),
        row_splits=splits([r.tokens for r in rows]),
        tokens=column(t for r in rows for t in r.tokens),
        parents=column(p for r in rows for p in r.parents),
        n_forced=column(r.n_forced for r in rows),
        emit=column(r.emit for r in rows),
        temperature=column((r.sampling.temperature for r in rows), np.float32),
        top_k=column(r.sampling.top_k for r in rows),
        top_p=column((r.sampling.top_p for r in rows), np.float32),
        seeds=column((r.sampling.seed for r in rows), np.uint64),
        draft=column(r.draft for r in rows),
        banned=column(t for r in rows for t in r.banned),
        banned_splits=splits([r.banned for r in rows]),
        banned_until=column(r.banned_until for r in rows),
    )
