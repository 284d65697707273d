"""A running sequence: its ids, what the engines hold of it, what the head proposed, its text."""

from __future__ import annotations

import time

import numpy as np
from tokenizers import Tokenizer

from .budget import NO_CAP
from .calibration import Calibration
from .candidates import MAX_DEPTH, NO_IDS, NOTHING_STATED, Candidates
from .drafts.base import LATER, NEVER, NOW
from .lookup import NgramLookup
from .payoff import Payoff
from .request import Delta, Finish, Request
from .sampling import gumbel
from .text import TextStream


class Sequence:
    """`committed` rows are in the target's cache and in the head's context; decoding, they are all ids but the last."""

    def __init__(self, request: Request, tokenizer: Tokenizer, lookup: bool = True):
        self.request = request
        self.slot = -1
        self.ids = list(request.prompt)
        self.committed = 0
        self.output_tokens = 0
        self.arrival_ns = time.time_ns()
        self.scheduled_ns = self.first_token_ns = self.last_token_ns = 0
        self.rounds = self.draft_tokens = self.accepted_tokens = 0
        self.accepted_by_depth = [0] * MAX_DEPTH
        self._text = TextStream(tokenizer, request.stops)
        self._lookup = NgramLookup() if lookup and self.drafting else None
        if self._lookup:
            self._lookup.extend(self.ids)
        self._head: tuple[np.ndarray, np.ndarray] | None = None  # ids and stated probabilities, see `Candidates`
        self._candidates: Candidates | None = None
        self._payoff = Payoff()
        self.seconds = self.plain_seconds = (
            0.0  # its share of the round's expected cost, with its drafts and without any
        )

    @property
    def prefilling(self) -> bool:
        return self.committed < len(self.request.prompt)

    @property
    def drafting(self) -> bool:
        return self.request.speculate and self.request.draft_cap != 0

    @property
    def draft_mode(self) -> int:
        """What the head is asked for after this round's tokens."""
        return NEVER if not self.drafting else NOW if self._payoff.on else LATER

    @property
    def holds_end_back(self) -> bool:
        return self.output_tokens < self.request.min_tokens

    @property
    def sampled(self) -> bool:
        s = self.request.sampling
        return s.temperature > 0 and s.top_k != 1

    def propose(self, calibration: Calibration) -> Candidates | None:
        """Candidates after the last id, from the head and from the sequence's own text; None when none may be drafted."""
        request = self.request
        self._candidates = None
        left = request.max_tokens - self.output_tokens - 1  # the bonus token takes one
        if not self.drafting or left <= 0 or not (self._head or self._lookup):
            return None
        cap = NO_CAP if request.draft_cap is None else request.draft_cap
        head = self._head or (NO_IDS, NOTHING_STATED)
        self._candidates = Candidates(*head, self.sampled, self._lookup, calibration, cap, left)
        return self._candidates

    def take_head(self, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """Keep the head's candidates `(depth, W)` and what it states of them, log-probabilities `(depth, W + 1, W)`.

        Sampling weighs them with the noise that the target will draw with.
        """
        if self.sampled:
            sampling = self.request.sampling
            positions = len(self.ids) + np.arange(len(ids))
            noise = np.stack([gumbel(sampling.seed, int(p), row) for p, row in zip(positions, ids)])
            scores = log_probs.astype(np.float64) / sampling.temperature + noise[:, None]
            stated = np.exp(scores - scores.max(axis=-1, keepdims=True))
            stated /= stated.sum(axis=-1, keepdims=True)
        else:
            stated = np.exp(log_probs)
        self._head = (ids, stated)

    def take_emitted(self, tokens: list[int], log_probs: list[float], drafted: int) -> Delta:
        """Account for one round's tokens and turn them into a delta; `delta.finish` is set when the sequence ends."""
        if self._candidates is not None:
            self._candidates.observe(tokens)
            self._payoff.observe(len(tokens), self.seconds, self.plain_seconds, self._candidates.from_head)
        self._head = None
        self.last_token_ns = time.time_ns()
        self.first_token_ns = self.first_token_ns or self.last_token_ns
        self.rounds += 1
        self.draft_tokens += drafted
        text, shown, reason = "", [], ""
        for token in tokens:
            shown.append(token)
            self.output_tokens += 1
            if token in self.request.end_ids:
                reason = "stop"
                break
            piece, stopped = self._text.push(token)
            text += piece
            if stopped:
                reason = "stop"
                break
            if self.output_tokens == self.request.max_tokens:
                reason = "length"
                break
        accepted = min(len(shown), len(tokens) - 1)  # what an end cut off counts nowhere
        self.accepted_tokens += accepted
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1
        self.ids += shown
        if self._lookup:
            self._lookup.extend(shown)
        if not reason:
            return Delta(text, shown, log_probs[: len(shown)])
        if not (reason == "stop" and shown[-1] not in self.request.end_ids):
            rest, stopped = self._text.flush()
            text += rest
            reason = "stop" if stopped else reason
        return Delta(text, shown, log_probs[: len(shown)], self.finish(reason))

    def finish(self, reason: str) -> Finish:
        return Finish(
            reason,
            len(self.request.prompt),
            self.output_tokens,
            self.rounds,
            self.draft_tokens,
            self.accepted_tokens,
            tuple(self.accepted_by_depth),
            self.arrival_ns,
            self.scheduled_ns,
            self.first_token_ns,
            self.last_token_ns,
        )
