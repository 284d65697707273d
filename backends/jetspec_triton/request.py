"""One request as the loop sees it, checked once at admission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import InvalidRequest
from .sampling import Sampling
from .step import StepLimits

MAX_STOPS = 64


class Finish(NamedTuple):
    """Why and how a sequence ended."""

    reason: str  # "stop" (end token or stop string), "length", "cancelled"
    prompt_tokens: int
    output_tokens: int
    rounds: int  # target forwards that emitted tokens
    draft_tokens: int  # drafted nodes that were verified
    accepted_tokens: int  # of those, accepted
    accepted_by_depth: tuple[int, ...]
    arrival_ns: int
    scheduled_ns: int
    first_token_ns: int
    last_token_ns: int


class Delta(NamedTuple):
    """What one round adds to a stream. `finish` is set on the last one; with `error` the request failed."""

    text: str
    ids: list[int]
    log_probs: list[float]
    finish: Finish | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Request:
    """prompt: token ids. `sink` gets every `Delta`, the last with `finish` or `error`; `cancelled` is polled each round."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    sink: Callable[[Delta], None]
    stops: tuple[str, ...] = ()
    end_ids: frozenset[int] = frozenset()
    min_tokens: int = 0  # end tokens are held back before this many output tokens
    speculate: bool = True
    draft_cap: int | None = None  # most drafted nodes a round; None leaves it to the budget
    cancelled: Callable[[], bool] = field(default=lambda: False)

    def check(self, limits: StepLimits, vocab_size: int) -> None:
        """Raise `InvalidRequest` unless the engines can serve this request."""
        s = self.sampling
        if not self.prompt:
            raise InvalidRequest("the prompt has 0 tokens, at least 1 is needed; send some text")
        for token in self.end_ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequest(f"end_id is {token}, valid is 0 to {vocab_size - 1}, or -1 for none")
        if self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {self.max_tokens}, the least is 1")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise InvalidRequest(f"min_tokens is {self.min_tokens}, valid is 0 to max_tokens, {self.max_tokens}")
        total = len(self.prompt) + self.max_tokens
        if total > limits.context:
            raise InvalidRequest(
                f"the prompt's {len(self.prompt)} tokens and max_tokens {self.max_tokens} make {total}, the engine's "
                f"context is {limits.context}; shorten the prompt or lower max_tokens"
            )
        bad = [t for t in self.prompt if not 0 <= t < vocab_size]
        if bad:
            raise InvalidRequest(f"input_ids holds {bad[0]}, valid ids are 0 to {vocab_size - 1}")
        _within("temperature", s.temperature, 0.0, 100.0)
        if s.top_p == 0.0:
            raise InvalidRequest("top_p is 0.0, it must be above 0; use temperature 0 for greedy decoding")
        _within("top_p", s.top_p, 1e-6, 1.0)
        _within("top_k", s.top_k, 0, 2**31 - 1)  # 0 is off
        _within("seed", s.seed, 0, 2**64 - 1)
        if self.draft_cap is not None and not 0 <= self.draft_cap < limits.rows_per_step:
            raise InvalidRequest(f"draft_budget is {self.draft_cap}, the engine takes 0 to {limits.rows_per_step - 1}")
        if len(self.stops) > MAX_STOPS:
            raise InvalidRequest(f"stop_words holds {len(self.stops)} strings, the most is {MAX_STOPS}; send fewer")
        if any(not stop for stop in self.stops):
            raise InvalidRequest("stop_words holds an empty string, which would stop at once; leave it out")


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # also refuses NaN
        raise InvalidRequest(f"{name} is {value}, valid is {low} to {high}")
