"""The loop's promises to its streams: one end each, whatever is cancelled, fails, stops or arrives meanwhile."""

from __future__ import annotations

import threading

import pytest
from jetspec_triton.errors import InvalidRequest, JetSpecError, QueueFull, StepFailed
from jetspec_triton.loop import DecodingLoop, collect
from jetspec_triton.metrics import Metrics
from jetspec_triton.request import Delta, Request
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import StepLimits

from .byte_level import byte_level
from .scripted_step import FailingStep, ScriptedStep

TOKENIZER = byte_level()
VOCAB = TOKENIZER.get_vocab_size()
LIMITS = StepLimits(slots=2, context=100, rows_per_step=16, draft_depth=4)
END = TOKENIZER.token_to_id("<|end|>")


def ids(text: str) -> list[int]:
    return [TOKENIZER.token_to_id(c) for c in text]


LINES = [
    "0abcdefghijklmnopqrstuvwxyz",
    "1ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "2zyxwvutsrqponmlkjihgfedcba",
    "3ZYXWVUTSRQPONMLKJIHG",
]
SCRIPTS = {ids(line)[0]: ids(line) + [END] * 80 for line in LINES}


class Recorded(Metrics):
    def __init__(self):
        self.ends: list[str] = []
        self.load: tuple[int, int] | None = None
        self.tokens = self.rows = self.drafted = self.accepted = 0

    def set_load(self, running, waiting):
        self.load = running, waiting

    def observe_round(self, rows, drafted, step_seconds, host_seconds):
        self.rows += rows
        self.drafted += drafted

    def observe_emitted(self, sequence, tokens, drafted, accepted):
        self.tokens += tokens
        self.accepted += accepted

    def observe_finished(self, sequence, reason):
        self.ends.append(reason)


def make(limits=LIMITS, right: int = 4, **settings) -> DecodingLoop:
    return DecodingLoop(ScriptedStep(SCRIPTS, limits, right), TOKENIZER, VOCAB, **settings)


def submit(loop: DecodingLoop, line: int, max_tokens: int = 12, prompt: int = 3, **fields) -> list[Delta]:
    deltas: list[Delta] = []
    loop.submit(Request(ids(LINES[line])[:prompt], max_tokens, Sampling(), deltas.append, **fields))
    return deltas


def drain(loop: DecodingLoop) -> None:
    for _ in range(200):
        if not (loop.scheduler.waiting or loop.scheduler.running):
            loop.round()  # idle: checks that every slot is free
            return
        loop.round()
    raise AssertionError("the loop does not come to an end")


def text(deltas: list[Delta]) -> str:
    return "".join(d.text for d in deltas)


def ends(deltas: list[Delta]) -> list[str]:
    """What ended a stream, in order: there must be exactly one, at the end."""
    found = [d.finish.reason if d.finish else "error" for d in deltas if d.finish or d.error]
    assert not found or deltas[-1].finish or deltas[-1].error
    return found


# Cancellation


@pytest.mark.parametrize("prompt, rounds", [(3, 1), (3, 3), (20, 1)])
def test_a_cancelled_request_frees_its_slot_within_one_round(prompt, rounds):
    """While it decodes and in the middle of its prompt."""
    metrics, gone = Recorded(), threading.Event()
    loop = make(right=0, metrics=metrics)
    deltas = submit(loop, 0, prompt=prompt, cancelled=gone.is_set)
    other = submit(loop, 1)
    waiting = submit(loop, 2)
    for _ in range(rounds):
        loop.round()
    before = len(deltas)
    gone.set()
    loop.round()
    assert ends(deltas) == ["cancelled"] and len(deltas) == before + 1
    finish = deltas[-1].finish
    assert (deltas[-1].text, deltas[-1].ids) == ("", [])
    assert (finish.prompt_tokens, finish.output_tokens) == (prompt, sum(len(d.ids) for d in deltas))
    assert not loop.scheduler.waiting and len(loop.scheduler.running) == 2  # the slot already serves the next one
    drain(loop)
    assert (ends(other), ends(waiting)) == (["length"], ["length"])
    assert len(deltas) == before + 1
    assert sorted(metrics.ends) == ["cancelled", "length", "length"]


def test_a_request_cancelled_in_the_queue_never_runs():
    metrics, gone = Recorded(), threading.Event()
    loop = make(LIMITS._replace(slots=1), metrics=metrics)
    first, second, third = submit(loop, 0), submit(loop, 1, cancelled=gone.is_set), submit(loop, 2)
    loop.round()
    gone.set()
    loop.round()
    assert ends(second) == ["cancelled"] and len(second) == 1
    assert second[0].finish.output_tokens == second[0].finish.scheduled_ns == 0
    drain(loop)
    assert (ends(first), ends(third), len(second)) == (["length"], ["length"], 1)
    assert all(batch.tokens[0] != ids("1")[0] for batch in loop.step.batches)
    assert sorted(metrics.ends) == ["cancelled", "length", "length"]


def test_a_request_cancelled_after_its_end_gets_nothing_more():
    loop, gone = make(), threading.Event()
    deltas = submit(loop, 0, max_tokens=2, cancelled=gone.is_set)
    drain(loop)
    count = len(deltas)
    gone.set()
    loop.round()
    assert ends(deltas) == ["length"] and len(deltas) == count


# Failing steps


@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_failed_step_ends_the_requests_of_its_round_and_no_others(call):
    metrics = Recorded()
    step = FailingStep(ScriptedStep(SCRIPTS, LIMITS, 0), {call}, RuntimeError("out of memory"))
    loop = DecodingLoop(step, TOKENIZER, VOCAB, metrics=metrics)
    first, second, waiting = submit(loop, 0), submit(loop, 1), submit(loop, 2)
    for _ in range(call):
        loop.round()
    for deltas in (first, second):
        assert ends(deltas) == ["error"]
        assert isinstance(deltas[-1].error, StepFailed) and "out of memory" in str(deltas[-1].error)
        assert len(deltas) == call
    assert metrics.ends == ["error", "error"] and not loop.scheduler.running and not waiting
    late = submit(loop, 3)
    drain(loop)
    assert text(waiting) == LINES[2][3:15] and text(late) == LINES[3][3:15]
    assert ends(waiting) == ends(late) == ["length"]


def test_a_running_request_outside_the_failed_round_goes_on():
    """The first prompt takes all rows, so the second one, though it has a slot, is not in the round that fails."""
    step = FailingStep(ScriptedStep(SCRIPTS, LIMITS), {1}, RuntimeError("boom"))
    loop = DecodingLoop(step, TOKENIZER, VOCAB)
    first, second = submit(loop, 0, prompt=20, max_tokens=3), submit(loop, 1)
    drain(loop)
    assert step.failed[0].slots.tolist() == [0]
    assert ends(first) == ["error"] and text(second) == LINES[1][3:15]


def test_an_engines_own_error_is_passed_on_as_it_is():
    error = StepFailed("slot 3 holds 5 rows")
    loop = DecodingLoop(FailingStep(ScriptedStep(SCRIPTS, LIMITS), {1, 2}, error), TOKENIZER, VOCAB)
    for _ in range(2):
        deltas = submit(loop, 0)
        loop.round()
        assert deltas == [Delta("", [], [], error=error)]


# Ends


def test_bursts_are_long_and_max_tokens_is_exact():
    for count in range(1, 14):
        metrics = Recorded()
        loop = make(metrics=metrics)
        deltas = submit(loop, 0, max_tokens=count)
        drain(loop)
        assert text(deltas) == LINES[0][3 : 3 + count] and ends(deltas) == ["length"]
        finish = deltas[-1].finish
        assert finish.output_tokens == metrics.tokens == count
        assert finish.rounds == len(deltas) == -(-(count - 1) // 5) + 1  # the first round, then 5 tokens each


@pytest.mark.parametrize("speculate", [True, False])
@pytest.mark.parametrize(
    "fields, shown, reason",
    [
        ({"stops": ("gh",)}, "cdef", "stop"),
        ({"stops": ("de",)}, "c", "stop"),
        ({"end_ids": frozenset(ids("d"))}, "c", "stop"),
        ({"stops": ("gh", "fg")}, "cde", "stop"),
        ({"end_ids": frozenset(ids("g"))}, "cdef", "stop"),
        ({"end_ids": frozenset(ids("g")), "stops": ("gh",)}, "cdef", "stop"),
        ({"end_ids": frozenset(ids("h")), "stops": ("fg",)}, "cde", "stop"),
        ({"end_ids": frozenset(ids("h")), "stops": ("ghi",)}, "cdefg", "stop"),
        ({"max_tokens": 5, "stops": ("gh",)}, "cdefg", "length"),
        ({"max_tokens": 6, "stops": ("gh",)}, "cdef", "stop"),
        ({"max_tokens": 5, "end_ids": frozenset(ids("g"))}, "cdef", "stop"),
        ({"max_tokens": 4, "end_ids": frozenset(ids("g"))}, "cdef", "length"),
    ],
)
def test_the_earliest_end_in_a_burst_wins(fields, shown, reason, speculate):
    metrics = Recorded()
    loop = make(metrics=metrics)
    deltas = submit(loop, 0, **{"max_tokens": 20, "speculate": speculate, **fields})
    drain(loop)
    assert (text(deltas), ends(deltas)) == (shown, [reason])
    emitted = [i for d in deltas for i in d.ids]
    assert emitted == ids(LINES[0])[3 : 3 + len(emitted)]
    finish = deltas[-1].finish
    assert finish.output_tokens == len(emitted) == sum(len(d.log_probs) for d in deltas)
    assert (metrics.tokens, metrics.drafted) == (finish.output_tokens, finish.draft_tokens)
    assert metrics.accepted == finish.accepted_tokens == sum(finish.accepted_by_depth) <= finish.output_tokens


def test_the_end_token_is_an_id_of_the_stream_and_no_text_of_it():
    loop = make()
    deltas = submit(loop, 3, max_tokens=60, end_ids=frozenset([END]))
    drain(loop)
    assert text(deltas) == LINES[3][3:] and ends(deltas) == ["stop"]
    assert deltas[-1].ids[-1] == END and deltas[-1].finish.output_tokens == len(LINES[3]) - 3 + 1


def test_speculation_off_and_caps_are_kept_in_every_round():
    for fields, most in (({"speculate": False}, 0), ({"draft_cap": 0}, 0), ({"draft_cap": 3}, 3)):
        loop = make()
        deltas = submit(loop, 0, **fields)
        drain(loop)
        assert text(deltas) == LINES[0][3:15]
        drafted = [len(b.tokens) - int(b.n_forced.sum()) for b in loop.step.batches]
        assert max(drafted) == most and deltas[-1].finish.draft_tokens == sum(drafted)
        assert {int(b.draft[0]) for b in loop.step.batches} == {int(most > 0)}  # the head leaves out who never drafts


# Admission


def test_a_full_queue_refuses_and_what_was_taken_is_served():
    loop = make(max_queue=3)
    taken = [submit(loop, i) for i in range(3)]
    with pytest.raises(QueueFull, match="3 .* 3"):
        submit(loop, 3)
    drain(loop)
    assert [ends(deltas) for deltas in taken] == [["length"]] * 3
    assert ends(submit(loop, 3)) == []  # room again


def test_clients_that_left_the_queue_keep_no_one_out():
    loop, gone = make(max_queue=2), threading.Event()
    left, stays = submit(loop, 0, cancelled=gone.is_set), submit(loop, 1)
    gone.set()
    new = submit(loop, 2)
    assert ends(left) == ["cancelled"]
    drain(loop)
    assert ends(stays) == ends(new) == ["length"] and len(left) == 1


def test_a_request_that_can_never_fit_is_refused_and_not_queued():
    loop = make()
    with pytest.raises(InvalidRequest, match="100"):
        submit(loop, 0, max_tokens=98)
    assert not loop.scheduler.waiting
    deltas = submit(loop, 0, max_tokens=97)  # exactly the context
    drain(loop)
    assert deltas[-1].finish.output_tokens == 97


def test_an_idle_round_runs_nothing():
    loop, metrics = make(), Recorded()
    loop.round()
    assert loop.step.batches == []
    busy = make(metrics=metrics)
    deltas = submit(busy, 0)
    busy.round()
    assert metrics.load == (1, 0) and deltas
    drain(busy)
    assert metrics.load == (0, 0) and metrics.rows == sum(len(b.tokens) for b in busy.step.batches)


def test_collect_returns_every_stream_in_order():
    loop = make()
    makers = [lambda sink, line=line: Request(ids(LINES[line])[:3], 5, Sampling(), sink) for line in (2, 0, 3)]
    assert [text(deltas) for deltas in collect(loop, makers)] == [LINES[i][3:8] for i in (2, 0, 3)]


# The thread


@pytest.fixture
def running():
    """A loop in its own thread, and a function that stops it and waits."""
    loop = make(max_queue=200)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()

    def stop():
        loop.stop()
        thread.join(timeout=20)
        assert not thread.is_alive()

    yield loop, stop
    stop()


def test_requests_from_many_threads_are_all_served_once(running):
    loop, stop = running
    streams: dict[tuple[int, int], list[Delta]] = {}
    gone = threading.Event()
    gone.set()

    def client(number: int):
        for i in range(15):
            fields = {"cancelled": gone.is_set} if i == 7 else {}
            streams[number, i] = submit(loop, (number + i) % 4, max_tokens=1 + i, **fields)

    clients = [threading.Thread(target=client, args=(n,)) for n in range(5)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    stop()  # everything that was submitted still ends
    assert len(streams) == 75
    for (number, i), deltas in streams.items():
        assert ends(deltas) == (["cancelled"] if i == 7 else ["length"])
        if i != 7:
            assert text(deltas) == LINES[(number + i) % 4][3 : 4 + i]
    loop.scheduler.check_integrity()


def test_an_idle_loop_wakes_for_a_request_and_ends_when_told(running):
    loop, stop = running
    done = threading.Event()
    sink = lambda delta: done.set() if delta.finish else None  # noqa: E731
    loop.submit(Request(ids("0ab"), 4, Sampling(), sink))
    assert done.wait(timeout=10)
    stop()


def test_a_stopped_loop_refuses_instead_of_swallowing(running):
    loop, stop = running
    stop()
    with pytest.raises(JetSpecError):
        submit(loop, 0)


def test_a_broken_client_callback_ends_its_own_request_only(running):
    loop, stop = running

    def broken(*_):
        raise RuntimeError("the connection is gone")

    before = submit(loop, 1)
    loop.submit(Request(ids("0ab"), 12, Sampling(), broken))
    loop.submit(Request(ids("0ab"), 12, Sampling(), lambda delta: None, cancelled=broken))
    after = submit(loop, 2)
    stop()
    assert (ends(before), ends(after)) == (["length"], ["length"])
    assert text(before) == LINES[1][3:15] and text(after) == LINES[2][3:15]
    loop.scheduler.check_integrity()


def test_a_fault_of_the_loop_itself_is_told_and_the_loop_goes_on(running, monkeypatch):
    loop, stop = running
    plan_round, calls = loop.scheduler.plan_round, []

    def fails_once(*args):
        calls.append(args)
        if len(calls) == 1:
            raise ValueError("broken plan")
        return plan_round(*args)

    monkeypatch.setattr(loop.scheduler, "plan_round", fails_once)
    failed = submit(loop, 0)
    while not failed:
        pass
    served = submit(loop, 1)
    stop()
    assert ends(failed) == ["error"] and "broken plan" in str(failed[0].error)
    assert ends(served) == ["length"]
