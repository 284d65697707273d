"""Streams of text: whole characters, equal to the one-shot decode, stop strings wherever token borders fall."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton.text import TextStream
from tokenizers import Tokenizer

from .byte_level import SPECIALS, byte_level, demo_tokenizers

BYTES = byte_level()
TOKENIZERS = {"bytes": BYTES, "demo": BYTES}  # the demo's own stands in where it was imported
if demo_tokenizers():
    TOKENIZERS["demo"] = Tokenizer.from_file(str(demo_tokenizers()[0]))
tokenizers = pytest.mark.parametrize("name", TOKENIZERS)

BROKEN = "\ufffd"
awkward = st.sampled_from(
    ["äöü", "€", "👩‍👩‍👧", "🇩🇪", "한", "e\u0301", "the", " ", "\n", "\r\n", "STOP", "\u200b", "नि"]
)
texts = st.lists(st.one_of(st.text(max_size=8), awkward), max_size=8).map("".join).filter(lambda t: BROKEN not in t)


def stream(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    """(pieces as they are shown, the last one from the flush; whether a stop string ended it)."""
    text, pieces = TextStream(tokenizer, stops), []
    for token in ids:
        piece, stopped = text.push(token)
        pieces.append(piece)
        if stopped:
            return pieces, True
    piece, stopped = text.flush()
    return [*pieces, piece], stopped


@tokenizers
@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_the_stream_is_the_text_and_never_shows_a_broken_character(name, text):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).ids
    pieces, stopped = stream(tokenizer, ids)
    assert not stopped
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces) == decoded
    if name == "bytes" and not any(special in text for special in SPECIALS):
        assert decoded == text  # the demo's vocabulary lacks a few rare bytes
    assert BROKEN in decoded or not any(BROKEN in piece for piece in pieces)


@tokenizers
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids_give_the_one_shot_decode(name, data):
    """Broken bytes and special tokens anywhere, unfinished characters at the end."""
    tokenizer = TOKENIZERS[name]
    few = [i for i in range(len(SPECIALS), 259) if i % 5 == 0]  # byte tokens of all kinds
    ids = data.draw(
        st.lists(st.one_of(st.integers(0, tokenizer.get_vocab_size() - 1), st.sampled_from(few)), max_size=16)
    )
    assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids, skip_special_tokens=True)


@tokenizers
def test_what_was_shown_is_never_taken_back(name):
    """At every border the text so far is a prefix of the final text; it waits only while a character is unfinished."""
    tokenizer, text = TOKENIZERS[name], "Größe: 5 € 👩‍👩‍👧 ok"
    ids, shown, decoder = tokenizer.encode(text).ids, "", TextStream(tokenizer)
    for count, token in enumerate(ids, 1):
        shown += decoder.push(token)[0]
        assert text.startswith(shown)
        whole = tokenizer.decode(ids[:count])
        assert shown == whole or whole.endswith(BROKEN)
    assert shown + decoder.flush()[0] == text


def test_the_bytes_of_an_unfinished_character_come_out_at_the_end():
    ids = BYTES.encode("a€").ids
    pieces, _ = stream(BYTES, ids[:-1])
    assert "".join(pieces[:-1]) == "a"
    assert pieces[-1] == BYTES.decode(ids[:-1])[1:] != ""


def test_special_tokens_are_not_shown():
    ids = [BYTES.token_to_id("a"), *(BYTES.token_to_id(s) for s in SPECIALS), BYTES.token_to_id("b")]
    assert "".join(stream(BYTES, ids)[0]) == "ab"


# Stop strings


def cut(tokenizer: Tokenizer, ids: list[int], stops: tuple[str, ...]) -> tuple[str, bool]:
    """After every token look at the whole text; the first token that completes a stop string ends it at the earliest one."""
    for count in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:count])
        if text.endswith(BROKEN) and count < len(ids):
            continue  # a character is unfinished
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], True
    return tokenizer.decode(ids), False


@tokenizers
@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(["a", "b", "ab", "the", " the", "STO", "STOP", "€", "👩", "in", "\n"]), max_size=14
    ).map("".join),
    stops=st.lists(
        st.text("ab€👩\n", min_size=1, max_size=4) | st.sampled_from(["STOP", "OPa", "thein"]), max_size=3
    ).map(tuple),
)
def test_text_ends_before_the_earliest_stop_string(name, text, stops):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).ids
    pieces, stopped = stream(tokenizer, ids, stops)
    assert ("".join(pieces), stopped) == cut(tokenizer, ids, stops)
    for count in range(len(pieces)):
        assert not any(stop in "".join(pieces[: count + 1]) for stop in stops)


def test_one_token_a_character_the_stop_that_completes_first_wins():
    for text, stops, shown in (
        ("xxabcd", ("abc",), "xx"),
        ("xxabcd", ("bc", "abcd"), "xxa"),
        ("xxabcd", ("abcd", "cd"), "xx"),
        ("aaab", ("aab",), "a"),
        ("abababac", ("ababac",), "ab"),
    ):
        pieces, stopped = stream(BYTES, [BYTES.token_to_id(c) for c in text], stops)
        assert ("".join(pieces), stopped) == (shown, True)


def test_half_a_stop_string_is_held_until_it_is_decided():
    text = TextStream(BYTES, ("abc", "b!"))
    pushed = [text.push(BYTES.token_to_id(c)) for c in "xabxab"]
    assert [piece for piece, _ in pushed] == ["x", "", "", "abx", "", ""]
    assert text.flush() == ("ab", False)
    assert text.flush() == ("", False)


def test_a_stop_string_that_only_the_flush_completes_still_stops():
    ids = BYTES.encode("a€").ids[:-1]
    stop = BYTES.decode(ids)[-1]
    assert stream(BYTES, ids, (stop,)) == (["a", *[""] * (len(ids) - 1), ""], True)


def test_a_stop_string_inside_one_token_drops_the_rest_of_the_token():
    ids = BYTES.encode("in the").ids
    assert len(ids) == 2
    for stops, shown in ((("th",), "in "), (("he", " t"), "in"), ((" t", "he"), "in"), (("he",), "in t")):
        pieces, stopped = stream(BYTES, ids, stops)
        assert ("".join(pieces), stopped) == (shown, True)
