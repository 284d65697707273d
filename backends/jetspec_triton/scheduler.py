"""Who runs: a bounded waiting line, slots, and the rows of the next round."""

from __future__ import annotations

import heapq
import time
from collections import deque
from typing import NamedTuple

import numpy as np

from .budget import CostCurve, Draft, plan
from .calibration import Calibration
from .drafts.base import NOW
from .errors import QueueFull
from .sequence import Sequence
from .step import StepBatch, StepLimits


class Round(NamedTuple):
    sequences: list[Sequence]  # one a row
    drafted: list[int]  # drafted nodes of each row
    batch: StepBatch


class Scheduler:
    """Admits in arrival order. A prompt is cut into chunks that share rounds with decoding sequences.

    prefill_rows: most prompt rows in a round that also decodes, so that running streams keep going.
    """

    def __init__(self, limits: StepLimits, max_queue: int, prefill_rows: int):
        self.limits, self.max_queue, self.prefill_rows = limits, max_queue, prefill_rows
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._free = list(range(limits.slots))

    @property
    def full(self) -> bool:
        return len(self.waiting) >= self.max_queue

    def enqueue(self, sequence: Sequence) -> None:
        """Raises `QueueFull` when the line is at its limit."""
        if self.full:
            raise QueueFull(
                f"{len(self.waiting)} requests wait, the limit is {self.max_queue}; retry later or raise max_queue"
            )
        self.waiting.append(sequence)

    def admit(self) -> None:
        while self.waiting and self._free:
            sequence = self.waiting.popleft()
            sequence.slot = heapq.heappop(self._free)
            sequence.scheduled_ns = time.time_ns()
            self.running.append(sequence)

    def retire(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        heapq.heappush(self._free, sequence.slot)
        sequence.slot = -1

    def check_integrity(self) -> None:
        """When nothing runs, every slot must be free exactly once. Raises `AssertionError` otherwise."""
        held = [s.slot for s in self.running]
        if sorted(self._free + held) != list(range(self.limits.slots)):
            raise AssertionError(f"slots free {sorted(self._free)} and held {sorted(held)} are not all slots once")

    def plan_round(self, cost: CostCurve, calibration: Calibration, max_draft: int) -> Round:
        """Rows for every decoding sequence and as many prompt chunks as fit. At least one sequence must run."""
        decoding = [s for s in self.running if not s.prefilling]
        chunks = self._chunks(len(decoding))
        base = len(decoding) + sum(length for _, length in chunks)
        room = min(max_draft, self.limits.rows_per_step - base)
        asking = [s for s in decoding if s.draft_mode == NOW]
        overhead = cost.draft_seconds if asking else 0.0
        drafts = plan([s.propose(calibration) for s in decoding], cost, base, room, overhead)
        rows = [_decode_row(s, d) for s, d in zip(decoding, drafts)] + [_prompt_row(s, n) for s, n in chunks]
        sequences = decoding + [s for s, _ in chunks]
        drafted = [len(d.tokens) for d in drafts] + [0] * len(chunks)
        total = base + sum(drafted)
        for sequence, nodes in zip(decoding, drafted):
            sequence.seconds = cost.seconds[total] * (1 + nodes) / total
            sequence.seconds += overhead / len(asking) if sequence.draft_mode == NOW else 0.0
            sequence.plain_seconds = cost.seconds[base] / base
        return Round(sequences, drafted, _batch(sequences, rows))

    def _chunks(self, decoding: int) -> list[tuple[Sequence, int]]:
        left = self.limits.rows_per_step - decoding
        if decoding:
            left = min(left, self.prefill_rows)
        chunks = []
        for sequence in self.running:
            if sequence.prefilling and left > 0:
                length = min(left, len(sequence.request.prompt) - sequence.committed)
                chunks.append((sequence, length))
                left -= length
        return chunks


class _Row(NamedTuple):
    tokens: list[int]
    parents: list[int]
    n_forced: int
    emit: bool


def _decode_row(sequence: Sequence, draft: Draft) -> _Row:
    return _Row([sequence.ids[-1], *draft.tokens], [-1, *draft.parents], 1, True)


def _prompt_row(sequence: Sequence, length: int) -> _Row:
    start = sequence.committed
    last = start + length == len(sequence.request.prompt)
    return _Row(sequence.request.prompt[start : start + length], list(range(-1, length - 1)), length, last)


def _batch(sequences: list[Sequence], rows: list[_Row]) -> StepBatch:
    sampling = [s.request.sampling for s in sequences]
    banned = [sorted(s.request.end_ids) if s.holds_end_back else [] for s in sequences]
    return StepBatch(
        slots=np.array([s.slot for s in sequences], np.int32),
        lengths=np.array([s.committed for s in sequences], np.int32),
        row_splits=np.concatenate(([0], np.cumsum([len(r.tokens) for r in rows]))).astype(np.int32),
        tokens=np.array([t for r in rows for t in r.tokens], np.int32),
        parents=np.array([p for r in rows for p in r.parents], np.int32),
        n_forced=np.array([r.n_forced for r in rows], np.int32),
        emit=np.array([r.emit for r in rows], np.int32),
        temperature=np.array([s.temperature for s in sampling], np.float32),
        top_k=np.array([s.top_k for s in sampling], np.int32),
        top_p=np.array([s.top_p for s in sampling], np.float32),
        seeds=np.array([s.seed for s in sampling], np.uint64),
        draft=np.array([s.draft_mode for s in sequences], np.int32),
        banned=np.array([token for row in banned for token in row], np.int32),
        banned_splits=np.concatenate(([0], np.cumsum([len(row) for row in banned]))).astype(np.int32),
        banned_until=np.array([len(s.request.prompt) + s.request.min_tokens for s in sequences], np.int32),
    )
