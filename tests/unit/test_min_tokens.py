"""`min_tokens` holds the end token back, at every node and with any drafts, and not one token longer."""

from __future__ import annotations

import math

import pytest
from jetspec_triton.request import Request
from jetspec_triton.sampling import Sampling

from .tiny import ScriptedDraft, make_loop, run

PROMPT, TOKENS = [5, 9, 33], 24
MODES = [Sampling(), Sampling(0.9, seed=11), Sampling(1.3, 12, 0.85, 2**63 + 5)]


def serve(mode: Sampling, end: int, min_tokens: int, truth: list[int] | None = None) -> list:
    loop = make_loop(ScriptedDraft([PROMPT + truth] if truth else [], 1.0))
    deltas: list = []
    loop.submit(
        Request(
            PROMPT,
            TOKENS,
            mode,
            deltas.append,
            end_ids=frozenset([end]),
            min_tokens=min_tokens,
            speculate=truth is not None,
        )
    )
    while loop.scheduler.running or loop.scheduler.waiting:
        loop.round()
    return deltas


def ids(deltas: list) -> list[int]:
    return [i for d in deltas for i in d.ids]


@pytest.mark.parametrize("mode", MODES)
def test_the_end_token_is_not_drawn_before_its_time_and_is_afterwards(mode):
    plain = run(make_loop(ScriptedDraft([], 0.0)), [PROMPT], TOKENS, mode, speculate=False)[0]
    at = 4
    end = plain[at]
    first = plain.index(end)
    assert ids(serve(mode, end, 0)) == ids(serve(mode, end, first)) == plain[: first + 1]
    held = serve(mode, end, first + 1)
    assert ids(held)[:first] == plain[:first] and ids(held)[first] != end
    assert all(math.isfinite(p) for d in held for p in d.log_probs)
    for count in (first + 1, first + 5, TOKENS):
        deltas = serve(mode, end, count)
        assert end not in ids(deltas)[:count] and len(ids(deltas)) >= count


@pytest.mark.parametrize("mode", MODES)
def test_drafts_that_know_nothing_of_it_change_no_token(mode):
    """The drafter proposes the text that would have been said without `min_tokens`, end token included."""
    plain = run(make_loop(ScriptedDraft([], 0.0)), [PROMPT], TOKENS, mode, speculate=False)[0]
    for count in (2, 7, 13):
        alone = serve(mode, plain[4], count)
        assert ids(serve(mode, plain[4], count, truth=plain)) == ids(alone)
        assert ids(serve(mode, plain[4], count, truth=ids(alone))) == ids(alone)
