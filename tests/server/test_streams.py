"""Streams on the real server: same ids in any company, cancellation, one final flag, endings."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from jetspec_client import Options

from .conftest import metric

PROMPTS = [
    "Why is the sky blue?",
    "Write a Python function that reverses a list.",
    "List three uses of copper.",
    "What is 17 times 23?",
    "Tell me a story about a fox.",
    "Explain recursion to a child.",
    "Translate 'good morning' to French.",
    "def fibonacci(n):",
]
MODES = [{}, {"temperature": 0.8, "seed": 7}]


def test_speculation_does_not_change_the_ids(client):
    for prompt in PROMPTS:
        for mode in MODES:
            plain = client.generate(prompt, Options(max_tokens=48, chat=True, speculate=False, **mode))
            drafted = client.generate(prompt, Options(max_tokens=48, chat=True, **mode))
            assert plain.ids == drafted.ids and plain.text == drafted.text
            assert plain.log_probs == pytest.approx(drafted.log_probs, abs=1e-2)
            assert plain.counts["total_draft_tokens"] == 0


def test_sixteen_streams_at_once_equal_one_at_a_time(client, server):
    asked = [(prompt, Options(max_tokens=40, chat=True, **mode)) for prompt in PROMPTS for mode in MODES]
    alone = [client.generate(*one) for one in asked]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda one: client.generate(*one), asked))
    assert [t.ids for t in together] == [a.ids for a in alone]
    assert [t.text for t in together] == [a.text for a in alone]
    assert metric(server, "jetspec_running_requests") == 0


def test_a_cancelled_stream_frees_its_slot(client, server):
    before = metric(server, "jetspec_requests_total")
    streams = [client.stream(PROMPTS[4], Options(max_tokens=1500, chat=True, end_id=-1)) for _ in range(8)]
    for stream in streams:
        next(stream)
    assert metric(server, "jetspec_running_requests") == 8  # every slot
    streams[3].close()
    assert (
        client.generate(PROMPTS[0], Options(max_tokens=4, end_id=-1)).finish_reason == "length"
    )  # runs in the freed slot
    for stream in streams:
        stream.close()
    deadline = time.monotonic() + 10
    while metric(server, "jetspec_running_requests") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert metric(server, "jetspec_running_requests") == 0
    assert metric(server, "jetspec_requests_total") == before + 9


def test_max_tokens_is_exact_and_the_reason_is_told(client):
    for limit in (1, 2, 3, 7, 30):
        chunks = list(
            client.stream("Repeat: one two one two one two one two one two", Options(max_tokens=limit, end_id=-1))
        )
        assert sum(len(c.ids) for c in chunks) == limit
        assert [c.finish_reason for c in chunks] == [""] * (len(chunks) - 1) + ["length"]
        assert chunks[-1].counts["num_output_tokens"] == limit


def test_a_stop_string_ends_the_text_before_it(client):
    whole = client.generate(PROMPTS[0], Options(max_tokens=60, chat=True))
    stop = whole.text[20:26]
    got = client.generate(PROMPTS[0], Options(max_tokens=60, chat=True, stop_words=(stop,)))
    assert got.text == whole.text[: whole.text.index(stop)]
    assert got.finish_reason == "stop"


def test_min_tokens_holds_the_end_token_back(client):
    asked = "What is 2 + 2? Answer with one word."
    short = client.generate(asked, Options(max_tokens=60, chat=True))
    count = len(short.ids) + 10
    got = client.generate(asked, Options(max_tokens=60, min_tokens=count, chat=True))
    assert len(got.ids) >= count and 2 not in got.ids[: count - 1]
    plain = client.generate(asked, Options(max_tokens=60, min_tokens=count, chat=True, speculate=False))
    assert plain.ids == got.ids


def test_the_end_token_ends_and_is_not_shown(client):
    got = client.generate("What is 2 + 2? Answer with one word.", Options(max_tokens=200, chat=True))
    assert got.finish_reason == "stop" and "<|im_end|>" not in got.text
    assert got.ids[-1] == 2


def test_ids_in_give_the_same_as_text_in(client):
    text = client.generate("Hello there", Options(max_tokens=12))
    ids = client.generate([19556, 665], Options(max_tokens=12))
    assert text.counts["num_input_tokens"] == 2 and ids.ids == text.ids


def test_a_seed_is_drawn_and_told_when_none_is_given(client):
    first = client.generate(PROMPTS[4], Options(max_tokens=20, temperature=1.0))
    second = client.generate(PROMPTS[4], Options(max_tokens=20, temperature=1.0))
    again = client.generate(PROMPTS[4], Options(max_tokens=20, temperature=1.0, seed=first.seed))
    assert first.seed != second.seed and first.ids != second.ids
    assert again.ids == first.ids


def test_streamed_text_is_the_one_shot_text(client):
    prompt = "Write one sentence in Japanese, one in Arabic and three emoji."
    chunks = list(client.stream(prompt, Options(max_tokens=80, chat=True, temperature=1.0, seed=5)))
    assert (
        "".join(c.text for c in chunks)
        == client.generate(prompt, Options(max_tokens=80, temperature=1.0, seed=5, chat=True)).text
    )
    assert not any("\ufffd" in c.text for c in chunks[:-1])


def test_control_tokens_in_user_content_are_plain_text(client):
    short = client.generate("hi", Options(max_tokens=1, chat=True)).counts["num_input_tokens"]
    spelt = client.generate("hi<|im_end|>", Options(max_tokens=1, chat=True)).counts["num_input_tokens"]
    assert spelt > short + 1  # spelt out in several tokens, not one control token


def test_a_long_prompt_does_not_stop_running_streams(client):
    stream = client.stream(PROMPTS[4], Options(max_tokens=400, chat=True, end_id=-1))
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        long_one = pool.submit(client.generate, [1000 + i % 500 for i in range(1000)], Options(max_tokens=1))
        chunks = 0
        while not long_one.done():
            next(stream)
            chunks += 1
    stream.close()
    assert chunks >= 1000 // 32 - 2  # one round at least for every chunk of the prompt
    assert long_one.result().counts["num_input_tokens"] == 1000
