"""A running sequence: its ids, what the engines hold of it, what the head proposed, its text."""

from __future__ import annotations

import time

import numpy as np
from tokenizers import Tokenizer

from .budget import NO_CAP, NO_PROPOSAL, Proposal
from .calibration import Calibration
from .lookup import NgramLookup
from .request import Delta, Finish, Request
from .sampling import gumbel
from .text import TextStream


class Sequence:
    """`committed` rows are in the target's cache and in the head's context; decoding, they are all ids but the last."""

    def __init__(self, request: Request, tokenizer: Tokenizer, draft_depth: int, lookup: bool = True):
        self.request = request
        self.slot = -1
        self.ids = list(request.prompt)
        self.committed = 0
        self.output_tokens = 0
        self.arrival_ns = time.time_ns()
        self.scheduled_ns = self.first_token_ns = self.last_token_ns = 0
        self.rounds = self.draft_tokens = self.accepted_tokens = 0
        self.accepted_by_depth = [0] * draft_depth
        self._text = TextStream(tokenizer, request.stops)
        self._lookup = NgramLookup()
        self._looks_up = lookup
        self._lookup.extend(self.ids)
        self._guess: tuple[int, list[int]] = (0, [])
        self._head: tuple[np.ndarray, np.ndarray] | None = None  # ids, stated probabilities, (depth, W)

    @property
    def prefilling(self) -> bool:
        return self.committed < len(self.request.prompt)

    @property
    def drafting(self) -> bool:
        return self.request.speculate and self.request.draft_cap != 0

    @property
    def holds_end_back(self) -> bool:
        return self.output_tokens < self.request.min_tokens

    @property
    def sampled(self) -> bool:
        s = self.request.sampling
        return s.temperature > 0 and s.top_k != 1

    def propose(self, calibration: Calibration) -> Proposal:
        """Candidates after the last id, from the head and from the sequence's own text."""
        request = self.request
        self._guess = (0, [])
        left = request.max_tokens - self.output_tokens - 1  # the bonus token takes one
        if not self.drafting or left <= 0 or self._head is None:
            return NO_PROPOSAL
        ids, stated = self._head
        probs = stated * calibration.head_factor(self.sampled)[:, None]
        probs /= np.maximum(probs.sum(axis=1, keepdims=True), 1.0)
        if self._looks_up:
            self._guess = self._lookup.propose(calibration.depth)
        n, chain = self._guess
        rates = calibration.lookup_rate(n, len(chain)) if chain else []
        depth = min(left, len(ids))
        cap = NO_CAP if request.draft_cap is None else request.draft_cap
        return Proposal(ids[:depth].tolist(), probs[:depth].tolist(), chain[:depth], rates[:depth], cap)

    def take_head(self, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """Keep the head's candidates `(depth, W)`. Sampling ranks them with the noise the target will use."""
        if self.sampled:
            sampling = self.request.sampling
            positions = len(self.ids) + np.arange(len(ids))
            noise = np.stack([gumbel(sampling.seed, int(p), row) for p, row in zip(positions, ids)])
            scores = log_probs.astype(np.float64) / sampling.temperature + noise
            order = np.argsort(-scores, axis=1)
            scores = np.take_along_axis(scores, order, axis=1)
            ids = np.take_along_axis(ids, order, axis=1)
            stated = np.exp(scores - scores[:, :1])
            stated /= stated.sum(axis=1, keepdims=True)
        else:
            stated = np.exp(log_probs)
        self._head = (ids, stated)

    def take_emitted(self, tokens: list[int], log_probs: list[float], drafted: int, calibration: Calibration) -> Delta:
        """Account for one round's tokens and turn them into a delta; `delta.finish` is set when the sequence ends."""
        if self._head is not None and self.drafting:
            calibration.observe_head(self.sampled, self._head[1], self._head[0], tokens)
            if self._guess[1]:
                calibration.observe_lookup(*self._guess, tokens)
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
        for depth in range(min(accepted, len(self.accepted_by_depth))):
            self.accepted_by_depth[depth] += 1
        self.ids += shown
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
