"""Incremental text of one sequence: whole characters only, stop strings matched across tokens."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TextStream:
    """Feed tokens one by one. What might become a stop string is held back until it is decided."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...] = ()):
        self._tokenizer, self._stops = tokenizer, stops
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._decoded = 0  # characters the decoder has given
        self._held = ""

    def push(self, token: int) -> tuple[str, bool]:
        """(text that is safe to show, whether a stop string ended the sequence; it and what follows is dropped)."""
        self._ids.append(token)
        piece = self._stream.step(self._tokenizer, token) or ""
        self._decoded += len(piece)
        return self._release(piece)

    def flush(self) -> tuple[str, bool]:
        """The rest at the end of the sequence: held text and the bytes of an unfinished character, as decoded."""
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        text, stopped = self._release(whole[self._decoded :])
        self._decoded = len(whole)
        held, self._held = self._held, ""
        return text + held, stopped

    def _release(self, piece: str) -> tuple[str, bool]:
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
