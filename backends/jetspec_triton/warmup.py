"""Measure what a round costs by its rows, on the step that will serve: engines, transport and draft head included."""

from __future__ import annotations

import time

import numpy as np

from .budget import CostCurve
from .drafts.base import LATER, NOW
from .step import Step, StepBatch

_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_CONTEXT = 128  # committed rows under which rounds are measured


def measure_cost(step: Step, repeats: int = 4) -> CostCurve:
    """Median seconds of a decoding round of one sequence by its rows, and of the head's forward. Uses slot 0, which must be idle."""
    limit = step.limits.rows_per_step
    context = min(_CONTEXT, step.limits.context - 1)
    for start in range(0, context, limit):
        step.run(_chain(start, min(limit, context - start), forced=True))
    rows = [n for n in _ROWS if n < limit] + [limit]

    def median_seconds(count: int, draft: int) -> float:
        nonlocal context
        times = []
        for _ in range(repeats):
            if context + limit > step.limits.context:
                step.run(_chain(0, 1, forced=True))
                context = 1
            started = time.perf_counter()
            result = step.run(_chain(context, count, forced=False, draft=draft))
            times.append(time.perf_counter() - started)
            context += len(result.emitted)
        return float(np.median(times[1:]))

    medians = [median_seconds(count, LATER) for count in rows]
    with_head, without = zip(*((median_seconds(1, NOW), median_seconds(1, LATER)) for _ in range(3)))
    draft_seconds = max(0.0, float(np.median(with_head) - np.median(without)))
    return CostCurve([0, *rows], [medians[0], *medians], draft_seconds)


def _chain(length: int, count: int, forced: bool, draft: int = LATER) -> StepBatch:
    """One row of `count` nodes; drafted nodes carry an id that greedy decoding will hardly choose."""
    one = lambda value, dtype=np.int32: np.array([value], dtype)  # noqa: E731
    return StepBatch(
        slots=one(0),
        lengths=one(length),
        row_splits=np.array([0, count], np.int32),
        tokens=np.zeros(count, np.int32),
        parents=np.arange(-1, count - 1, dtype=np.int32),
        n_forced=one(count if forced else 1),
        emit=one(0 if forced else 1),
        temperature=one(0, np.float32),
        top_k=one(0),
        top_p=one(1, np.float32),
        seeds=one(0, np.uint64),
        draft=one(draft),
        banned=np.zeros(0, np.int32),
        banned_splits=np.zeros(2, np.int32),
        banned_until=one(0),
    )
