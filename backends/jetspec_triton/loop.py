"""The decoding loop: admit, build trees, step, text, stream, retire. One thread runs it; others only submit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tokenizers import Tokenizer

from .budget import CostCurve
from .calibration import Calibration
from .drafts.base import NOW
from .errors import JetSpecError, StepFailed, Stopping
from .metrics import Metrics
from .request import Delta, Request
from .scheduler import Round, Scheduler
from .sequence import Sequence
from .step import Step, StepResult


class DecodingLoop:
    """Serves requests on a `Step`.

    cost: seconds by rows, see `warmup.measure_cost`. max_draft: most drafted nodes in a round, over all sequences.
    lookup: draft from each sequence's own text too, beside the head.
    """

    def __init__(
        self,
        step: Step,
        tokenizer: Tokenizer,
        vocab_size: int,
        *,
        max_queue: int = 64,
        prefill_rows: int = 32,
        max_draft: int | None = None,
        lookup: bool = True,
        cost: CostCurve | None = None,
        metrics: Metrics | None = None,
    ):
        self.step, self._tokenizer, self._vocab_size = step, tokenizer, vocab_size
        self.scheduler = Scheduler(step.limits, max_queue, prefill_rows)
        self.calibration = Calibration()
        self.max_draft = step.limits.rows_per_step if max_draft is None else max_draft
        self.cost = cost or CostCurve.flat(step.limits.rows_per_step)
        self._metrics = metrics or Metrics()
        self._lookup = lookup
        self._wake = threading.Condition()
        self._stopping = False

    def submit(self, request: Request) -> None:
        """Queue a request; thread-safe. Raises `InvalidRequest` `QueueFull` or `Stopping`; afterwards its sink gets everything."""
        request.check(self.step.limits, self._vocab_size)
        sequence = Sequence(request, self._tokenizer, self._lookup)
        with self._wake:
            if self._stopping:
                raise Stopping("this model is being stopped and takes no new requests; send it to another server")
            if self.scheduler.full:
                self._drop_cancelled_waiting()  # clients that have gone must not keep others out
            self.scheduler.enqueue(sequence)
            self._wake.notify()

    def stop(self) -> None:
        """Let `run` return once everything submitted has ended; thread-safe."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def run(self) -> None:
        """Run rounds until `stop`. Whatever fails, the requests it concerns get the error and the loop goes on."""
        while True:
            with self._wake:
                while not (self.scheduler.waiting or self.scheduler.running or self._stopping):
                    self._wake.wait()
                if self._stopping and not (self.scheduler.waiting or self.scheduler.running):
                    return
            try:
                self.round()
            except Exception as error:  # a fault of the loop itself; waiting requests are not touched by it
                self._fail(list(self.scheduler.running), error)

    def round(self) -> None:
        """One round over whatever runs; does nothing when idle."""
        with self._wake:
            self._drop_cancelled_running()
            self._drop_cancelled_waiting()
            self.scheduler.admit()
            waiting = len(self.scheduler.waiting)
        running = len(self.scheduler.running)
        self._metrics.set_load(running, waiting)
        if not running:
            self.scheduler.check_integrity()
            return
        started = time.perf_counter()
        planned = self.scheduler.plan_round(self.cost, self.calibration, self.max_draft)
        stepped = time.perf_counter()
        try:
            result = self.step.run(planned.batch)
        except Exception as error:
            self._fail(planned.sequences, error)
            self._metrics.set_load(len(self.scheduler.running), len(self.scheduler.waiting))
            return
        step_seconds = time.perf_counter() - stepped
        self._deliver(planned, result)
        host = time.perf_counter() - started - step_seconds
        self._metrics.observe_round(len(planned.batch.tokens), sum(planned.drafted), step_seconds, host)
        if not self.scheduler.running:
            self._metrics.set_load(0, len(self.scheduler.waiting))

    def _deliver(self, planned: Round, result: StepResult) -> None:
        for b, sequence in enumerate(planned.sequences):
            try:
                self._deliver_row(planned, result, b, sequence)
            except Exception as error:  # one sequence's text or sink must not stop the others
                if sequence.slot >= 0:
                    self._fail([sequence], error)

    def _deliver_row(self, planned: Round, result: StepResult, b: int, sequence: Sequence) -> None:
        start, stop = int(result.emitted_splits[b]), int(result.emitted_splits[b + 1])
        tokens, log_probs = result.emitted[start:stop].tolist(), result.log_probs[start:stop].tolist()
        accepted = max(len(tokens) - 1, 0)
        sequence.committed += int(planned.batch.n_forced[b]) + accepted
        if not tokens:
            return
        delta = sequence.take_emitted(tokens, log_probs, planned.drafted[b])
        shown = min(accepted, len(delta.ids))  # what an end cut off counts nowhere
        self._metrics.observe_emitted(sequence, len(delta.ids), planned.drafted[b], shown)
        if delta.finish is None and planned.batch.draft[b] == NOW:
            sequence.take_head(result.draft_ids[b], result.draft_log_probs[b])
        if delta.finish is not None:
            self._retire(sequence, delta.finish.reason)
        sequence.request.sink(delta)

    def _drop_cancelled_running(self) -> None:
        for sequence in [s for s in self.scheduler.running if _gone(s)]:
            self._retire(sequence, "cancelled")
            _tell(sequence, Delta("", [], [], sequence.finish("cancelled")))

    def _drop_cancelled_waiting(self) -> None:
        for sequence in [s for s in self.scheduler.waiting if _gone(s)]:
            self.scheduler.waiting.remove(sequence)
            self._metrics.observe_finished(sequence, "cancelled")
            _tell(sequence, Delta("", [], [], sequence.finish("cancelled")))

    def _fail(self, sequences: list[Sequence], error: Exception) -> None:
        if not isinstance(error, JetSpecError):
            error = StepFailed(f"this round failed: {error!r}; the request can be sent again")
        for sequence in sequences:
            self._retire(sequence, "error")
            _tell(sequence, Delta("", [], [], error=error))

    def _retire(self, sequence: Sequence, reason: str) -> None:
        self.scheduler.retire(sequence)
        self._metrics.observe_finished(sequence, reason)


def _gone(sequence: Sequence) -> bool:
    """Whether the client no longer wants the answer; one that cannot even be asked is gone."""
    try:
        return sequence.request.cancelled()
    except Exception:
        return True


def _tell(sequence: Sequence, delta: Delta) -> None:
    """The last delta of a sequence that already left; a sink that fails now has nothing more to lose."""
    with suppress(Exception):
        sequence.request.sink(delta)


def collect(loop: DecodingLoop, requests: list[Callable[[Callable[[Delta], None]], Request]]) -> list[list[Delta]]:
    """Run requests to their end on an idle loop in this thread. Each maker gets its sink. Returns the deltas of each."""
    streams: list[list[Delta]] = []
    for make in requests:
        deltas: list[Delta] = []
        streams.append(deltas)
        loop.submit(make(deltas.append))
    while loop.scheduler.waiting or loop.scheduler.running:
        loop.round()
    return streams
