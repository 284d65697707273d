"""One timed answer: ids, tokens per second, time to first token, tokens per round."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from .client import Chunk, Client, Options


@dataclass(frozen=True)
class Answer:
    """Times in seconds. `itl_s` is the mean time per output token after the first, `gaps_s` those between chunks."""

    text: str
    ids: list[int]
    last: Chunk
    ttft_s: float
    total_s: float
    gaps_s: list[float]

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed: tokens after the first over the time after it."""
        return (len(self.ids) - 1) / max(self.total_s - self.ttft_s, 1e-9)

    @property
    def itl_s(self) -> float:
        return (self.total_s - self.ttft_s) / max(len(self.ids) - 1, 1)

    @property
    def tokens_per_round(self) -> float:
        """Tokens per target forward, the round that ends the prompt left out."""
        return (len(self.ids) - 1) / max(self.last.counts["num_rounds"] - 1, 1)

    @property
    def digest(self) -> str:
        """Short hash of the ids, to compare answers by eye."""
        return hashlib.sha256(",".join(map(str, self.ids)).encode()).hexdigest()[:12]

    def stats(self) -> str:
        counts = self.last.counts
        return (
            f"{len(self.ids)} tokens, {self.tokens_per_s:.1f} tokens/s, first after {self.ttft_s * 1e3:.0f} ms, "
            f"{self.tokens_per_round:.2f} tokens per round, {counts['total_accepted_draft_tokens']} of "
            f"{counts['total_draft_tokens']} drafted accepted, ended by {self.last.finish_reason}, seed {self.last.seed}, "
            f"ids {self.digest}"
        )


def answer(
    client: Client, prompt: str | list[int], options: Options, show: Callable[[str], None] = lambda text: None
) -> Answer:
    """Stream one answer, passing each piece of text to `show`."""
    started = time.perf_counter()
    arrivals, chunks = [], []
    for chunk in client.stream(prompt, options):
        arrivals.append(time.perf_counter())
        chunks.append(chunk)
        show(chunk.text)
    ids = [i for c in chunks for i in c.ids]
    first = next((at for at, c in zip(arrivals, chunks) if c.ids), arrivals[-1])
    gaps = [b - a for a, b in zip(arrivals, arrivals[1:])]
    text = "".join(c.text for c in chunks)
    return Answer(text, ids, chunks[-1], first - started, arrivals[-1] - started, gaps)
