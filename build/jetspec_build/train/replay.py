"""A step that replays known text: the decoding loop runs on it as it does on engines, without a target forward.

Speculation is lossless, so the text does not depend on what is drafted. The target's side of a step is then a look into
the text, and only the draft head is run; trees of any size cost next to nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jetspec_triton.accept import walk
from jetspec_triton.loop import DecodingLoop, collect
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.request import Delta, Request
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import StepBatch, StepLimits, StepResult
from jetspec_triton.tree import depths_of
from tokenizers import Tokenizer
from torch import Tensor

from .known_text import KnownText
from .rounds import propose

ROWS = 512  # nodes that a replayed round takes
AT_ONCE = 32  # anchors whose candidates are computed together
PAST_END = -1  # stands for the token after the last known one; it follows an end token, so nothing shows it


class Drafts:
    """A head's candidates along one text, computed where they are asked for."""

    def __init__(self, head: DraftHead, embedding: Tensor, lm_head: Tensor, text: KnownText, depth: int | None = None):
        self.text, self.depth = text, depth or head.config.depth
        self._head, self._tables = head, (embedding, lm_head)
        self._chunks: dict[int, tuple] = {}

    def at(self, anchor: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, log-probabilities) of one anchor, the depth first."""
        offset = anchor - self.text.prompt_length
        number, row = divmod(offset, AT_ONCE)
        if number not in self._chunks:
            first = self.text.prompt_length + number * AT_ONCE
            anchors = np.arange(first, min(first + AT_ONCE, len(self.text.tokens)))
            self._chunks[number] = propose(self._head, *self._tables, self.text, anchors)
        ids, log_probs = self._chunks[number]
        return ids[row, : self.depth], log_probs[row, : self.depth]


class ReplayStep:
    """The `Step` of one sequence at a time; `play` says whose."""

    def __init__(self, depth: int, context: int):
        self.limits = StepLimits(slots=1, context=context, rows_per_step=ROWS, draft_depth=depth)
        self._drafts: Drafts | None = None

    def play(self, drafts: Drafts) -> None:
        self._drafts = drafts

    def run(self, batch: StepBatch) -> StepResult:
        tokens, length, forced = self._drafts.text.tokens, int(batch.lengths[0]), int(batch.n_forced[0])
        positions = length + depths_of(batch.parents, forced)

        def draw(node: int) -> int:
            after = int(positions[node]) + 1
            return int(tokens[after]) if after < len(tokens) else PAST_END

        accepted, emitted = walk(batch.tokens, batch.parents, forced - 1, draw) if batch.emit[0] else ([], [])
        anchor = min(length + forced + len(accepted), len(tokens) - 1)
        ids, log_probs = self._drafts.at(max(anchor, self._drafts.text.prompt_length))
        splits, unknown = np.array([0, len(emitted)], np.int32), np.zeros(len(emitted), np.float32)
        return StepResult(np.asarray(emitted, np.int32), splits, unknown, ids[None], log_probs[None])


class Played(NamedTuple):
    """What a text gave. The forward over the prompt, which emits the first token without a draft, is not a round."""

    tokens: int
    rounds: int
    accepted_by_depth: tuple[int, ...]


class Replay:
    """One decoding loop over any number of texts, with what it has learnt on the way, as a server has.

    nodes: of every tree, the root included. lookup: draft from the text itself too, as served.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, depth: int, context: int, nodes: int, lookup: bool = True
    ):
        self._step = ReplayStep(depth, context)
        self._loop = DecodingLoop(self._step, tokenizer, vocab_size, max_draft=nodes - 1, lookup=lookup)

    def stream(self, drafts: Drafts, sampling: Sampling, end_ids: frozenset[int]) -> list[Delta]:
        """The deltas of one text, one a round."""
        text = drafts.text
        prompt, answer = text.tokens[: text.prompt_length].tolist(), len(text.tokens) - text.prompt_length
        self._step.play(drafts)
        make = lambda sink: Request(prompt, answer, sampling, sink, end_ids=end_ids)  # noqa: E731
        deltas = collect(self._loop, [make])[0]
        if deltas[-1].error is not None:
            raise deltas[-1].error
        return deltas

    def play(self, drafts: Drafts, sampling: Sampling, end_ids: frozenset[int]) -> Played:
        finish = self.stream(drafts, sampling, end_ids)[-1].finish
        return Played(finish.output_tokens - 1, finish.rounds - 1, finish.accepted_by_depth)
