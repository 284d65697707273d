"""Queue, slots, and what shares a round: chunks of prompts beside sequences that decode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.budget import CostCurve
from jetspec_triton.calibration import Calibration
from jetspec_triton.errors import QueueFull
from jetspec_triton.loop import DecodingLoop
from jetspec_triton.request import Request
from jetspec_triton.sampling import Sampling
from jetspec_triton.scheduler import Scheduler
from jetspec_triton.sequence import Sequence
from jetspec_triton.step import StepLimits

from .byte_level import byte_level
from .scripted_step import ScriptedStep

TOKENIZER = byte_level()
LIMITS = StepLimits(slots=2, context=200, rows_per_step=16, draft_depth=4)
VOCAB = 300


def sequence(prompt=(9, 9, 9)) -> Sequence:
    return Sequence(Request(list(prompt), 5, Sampling(), lambda delta: None), TOKENIZER, 4)


def scheduler(limits=LIMITS, max_queue=3, prefill_rows=4) -> Scheduler:
    return Scheduler(limits, max_queue, prefill_rows)


def plan(s: Scheduler, max_draft: int = 99):
    return s.plan_round(CostCurve.flat(99), Calibration(), max_draft)


def test_the_queue_is_bounded_and_says_so():
    s = scheduler()
    for _ in range(3):
        s.enqueue(sequence())
    with pytest.raises(QueueFull, match="3 requests wait, the limit is 3"):
        s.enqueue(sequence())
    s.admit()
    s.enqueue(sequence())
    s.enqueue(sequence())
    assert len(s.waiting) == 3 and len(s.running) == 2


def test_admission_is_in_order_of_arrival_and_slots_are_reused():
    s, all_of_them = scheduler(max_queue=9), [sequence() for _ in range(5)]
    for one in all_of_them:
        s.enqueue(one)
    s.admit()
    assert s.running == all_of_them[:2] and [x.slot for x in s.running] == [0, 1]
    assert all(x.scheduled_ns >= x.arrival_ns for x in s.running)
    s.retire(all_of_them[0])
    assert all_of_them[0].slot == -1
    s.admit()
    assert s.running == all_of_them[1:3] and all_of_them[2].slot == 0
    s.retire(all_of_them[1])
    s.retire(all_of_them[2])
    s.admit()
    assert s.running == all_of_them[3:] and sorted(x.slot for x in s.running) == [0, 1]
    s.check_integrity()


def test_integrity_sees_a_slot_that_is_lost_or_held_twice():
    s = scheduler()
    s.enqueue(sequence())
    s.admit()
    s.check_integrity()
    lost = s.running.pop()
    with pytest.raises(AssertionError, match="free"):
        s.check_integrity()
    s.running += [lost]
    s._free.append(lost.slot)
    with pytest.raises(AssertionError, match="held"):
        s.check_integrity()


def test_a_lone_prompt_gets_all_rows_and_the_first_of_two_goes_first():
    s = scheduler()
    s.enqueue(sequence(range(3, 43)))
    s.admit()
    assert np.diff(plan(s).batch.row_splits).tolist() == [16]  # no sequence decodes: prefill_rows is no limit
    s.enqueue(sequence(range(3, 13)))
    s.admit()
    s.running[0].committed = 32
    batch = plan(s).batch
    assert np.diff(batch.row_splits).tolist() == [8, 8]
    assert batch.tokens.tolist() == [*range(35, 43), *range(3, 11)]
    assert batch.lengths.tolist() == [32, 0] and batch.emit.tolist() == [1, 0]
    assert batch.n_forced.tolist() == [8, 8]


def test_a_decoding_sequence_leaves_prefill_rows_to_prompts_and_drafts_fill_the_rest():
    s = scheduler()
    s.enqueue(sequence())
    s.enqueue(sequence(range(3, 43)))
    s.admit()
    first = s.running[0]
    first.committed, first.ids = 3, [9, 9, 9, 7]
    first.take_head(np.arange(8).reshape(4, 2), np.log(np.tile([0.6, 0.3], (4, 3, 1))))
    round_ = plan(s)
    assert round_.sequences == s.running
    assert np.diff(round_.batch.row_splits).tolist() == [12, 4]  # 16 rows: 4 for the prompt, the last token, 11 drafted
    assert round_.drafted == [11, 0] and round_.batch.n_forced.tolist() == [1, 4]
    assert plan(s, max_draft=2).drafted == [2, 0]
    assert plan(s, max_draft=0).drafted == [0, 0]


def test_parameters_travel_with_their_row():
    s = scheduler()
    for seed in (5, 2**64 - 1):
        request = Request([9], 5, Sampling(0.5 + seed % 2, seed % 7, 0.25, seed), lambda delta: None)
        s.enqueue(Sequence(request, TOKENIZER, 4))
    s.admit()
    batch = plan(s).batch
    assert batch.seeds.tolist() == [5, 2**64 - 1] and batch.seeds.dtype == np.uint64
    assert batch.temperature.tolist() == [1.5, 1.5] and batch.top_p.tolist() == [0.25, 0.25]
    assert batch.top_k.tolist() == [5, (2**64 - 1) % 7]


def test_end_tokens_are_banned_up_to_the_position_where_min_tokens_are_said():
    s = scheduler()
    for min_tokens in (0, 3):
        request = Request([9, 9], 5, Sampling(), lambda delta: None, end_ids=frozenset([8, 4]), min_tokens=min_tokens)
        s.enqueue(Sequence(request, TOKENIZER, 4))
    s.admit()
    batch = plan(s).batch
    assert batch.banned.tolist() == [4, 8] and batch.banned_splits.tolist() == [0, 0, 2]
    assert batch.banned_until[1] == 2 + 3
    s.running[1].output_tokens = 3
    assert plan(s).batch.banned_splits.tolist() == [0, 0, 0]


# Whole runs on a scripted target


def run_all(loop: DecodingLoop, step: ScriptedStep, prompts: list[list[int]], max_tokens: list[int]) -> list[list]:
    streams: list[list] = [[] for _ in prompts]
    for prompt, count, deltas in zip(prompts, max_tokens, streams):
        loop.submit(Request(prompt, count, Sampling(), deltas.append))
    rounds = 0
    while loop.scheduler.waiting or loop.scheduler.running:
        decoding = {s.slot for s in loop.scheduler.running if not s.prefilling}
        loop.round()
        rounds += 1
        batch = step.batches[-1]
        assert decoding <= set(batch.slots.tolist())  # none of those that decode waits for a prompt
        of_prompts = batch.n_forced[~np.isin(batch.slots, list(decoding))].sum()
        assert not decoding or of_prompts <= loop.scheduler.prefill_rows
        assert rounds < 2000
    loop.scheduler.check_integrity()
    return streams


def scripts_for(lengths: list[int]) -> tuple[dict[int, list[int]], list[list[int]]]:
    """Prompt `i` starts with token `10 + i`; the text goes on with tokens that tell their position."""
    scripts = {10 + i: [10 + i, *(100 + (i * 37 + p) % 150 for p in range(200))] for i in range(len(lengths))}
    return scripts, [script[:length] for script, length in zip(scripts.values(), lengths)]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    counts=st.lists(st.integers(1, 12), min_size=8, max_size=8),
    slots=st.integers(1, 5),
    rows=st.integers(2, 24),
    prefill_rows=st.integers(1, 40),
    right=st.integers(0, 4),
)
def test_rows_never_exceed_the_step_and_every_prompt_is_fed_once_in_order(
    lengths, counts, slots, rows, prefill_rows, right
):
    scripts, prompts = scripts_for(lengths)
    step = ScriptedStep(scripts, StepLimits(slots, 100, rows, 4), right)
    loop = DecodingLoop(step, TOKENIZER, VOCAB, prefill_rows=prefill_rows)
    streams = run_all(loop, step, prompts, counts)
    assert max(len(batch.tokens) for batch in step.batches) <= rows
    firsts = [batch.tokens[start] for batch in step.batches for start in batch.row_splits[:-1][batch.lengths == 0]]
    assert firsts == list(scripts)  # in order of arrival
    for prompt, count, deltas in zip(prompts, counts, streams):
        script = scripts[prompt[0]]
        assert [i for d in deltas for i in d.ids] == script[len(prompt) : len(prompt) + count]
        assert sum(d.finish is not None for d in deltas) == 1


def test_running_streams_keep_going_during_a_long_prompt():
    scripts, prompts = scripts_for([4, 90])
    step = ScriptedStep(scripts, LIMITS, right=0)
    loop = DecodingLoop(step, TOKENIZER, VOCAB, prefill_rows=5)
    streams: list[list] = [[], []]
    loop.submit(Request(prompts[0], 60, Sampling(), streams[0].append))
    loop.round()
    loop.submit(Request(prompts[1], 3, Sampling(), streams[1].append))
    while not streams[1]:
        before = len(streams[0])
        loop.round()
        assert len(streams[0]) == before + 1
        prompt_rows = step.batches[-1].n_forced[step.batches[-1].slots == 1].sum()
        assert 1 <= prompt_rows <= 5
    assert len(streams[0]) == 1 + 18  # 90 prompt rows, 5 a round


def test_prompts_longer_than_a_step_are_cut_into_chunks():
    scripts, prompts = scripts_for([90])
    step = ScriptedStep(scripts, LIMITS)
    streams = run_all(DecodingLoop(step, TOKENIZER, VOCAB), step, prompts, [2])
    assert [b.n_forced.tolist() for b in step.batches[:6]] == [[16]] * 5 + [[10]]
    assert [b.emit.tolist() for b in step.batches[:6]] == [[0]] * 5 + [[1]]
    assert [b.lengths.tolist() for b in step.batches[:6]] == [[0], [16], [32], [48], [64], [80]]
    assert [i for d in streams[0] for i in d.ids] == scripts[10][90:92]


def test_more_than_64_wait_and_all_are_served_in_order():
    scripts, prompts = scripts_for([3] * 90)
    step = ScriptedStep(scripts, LIMITS)
    loop = DecodingLoop(step, TOKENIZER, VOCAB, max_queue=90)
    streams = run_all(loop, step, prompts, [4] * 90)
    starts = [d[0].finish or d[-1].finish for d in streams]
    assert [f.scheduled_ns for f in starts] == sorted(f.scheduled_ns for f in starts)
    assert all([i for d in deltas for i in d.ids] == scripts[p[0]][3:7] for deltas, p in zip(streams, prompts))


def test_more_slots_than_rows_still_serve_everyone():
    """Only as many sequences decode at once as a step has rows; the others wait in their slots."""
    scripts, prompts = scripts_for([2] * 12)
    step = ScriptedStep(scripts, StepLimits(12, 100, 4, 4))
    streams = run_all(DecodingLoop(step, TOKENIZER, VOCAB), step, prompts, [6] * 12)
    assert all([i for d in deltas for i in d.ids] == scripts[p[0]][2:8] for deltas, p in zip(streams, prompts))
