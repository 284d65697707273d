"""What a head proposes at given places of a known text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jetspec_triton.modules.draft_head import DraftHead
from torch import Tensor

from .blocks import forward_blocks, make_blocks
from .known_text import KnownText

WIDTH = 16


class Proposals(NamedTuple):
    """What the head proposes at each of `A` anchors: the top `WIDTH` tokens of every depth."""

    ids: np.ndarray  # (A, depth, WIDTH)
    log_probs: np.ndarray  # (A, depth, WIDTH + 1, WIDTH), see `DraftHead.candidates`


@torch.inference_mode()
def propose(
    head: DraftHead, embedding: Tensor, lm_head: Tensor, text: KnownText, anchors: np.ndarray, at_once: int = 32
) -> Proposals:
    """The head's proposals at every anchor position `(A,)` of a text. embedding, lm_head: the target's, `(V, H)`."""
    lm_head = lm_head[head.draft_vocab.long()]
    ids, log_probs = [], []
    for start in range(0, len(anchors), at_once):
        some = anchors[start : start + at_once]
        blocks = make_blocks([text.tokens], [text.features], [some], head.config.block_size, head.config.mask_token_id)
        hidden = forward_blocks(head, embedding, blocks)[0, :, 1:]
        some_ids, some_log_probs = head.candidates(hidden, embedding, lm_head, WIDTH)
        ids.append(some_ids.numpy())
        log_probs.append(some_log_probs.numpy())
    return Proposals(np.concatenate(ids), np.concatenate(log_probs))


def accepted_in_chain(ids: np.ndarray, log_probs: np.ndarray, truth: Sequence[int]) -> int:
    """Accepted tokens of the likeliest chain of one anchor; shapes as in `Proposals`."""
    count, above = 0, ids.shape[1]
    while count < min(len(ids), len(truth)):
        above = int(log_probs[count, above].argmax())
        if ids[count, above] != truth[count]:
            break
        count += 1
    return count


def play_chain(answer: np.ndarray, proposals: Proposals) -> tuple[int, int]:
    """Tokens and rounds when every round drafts the likeliest chain. answer: `(A,)`, its first token already said."""
    at, rounds = 0, 0
    while at < len(answer) - 1:
        truth = answer[at + 1 :]
        accepted = accepted_in_chain(proposals.ids[at], proposals.log_probs[at], truth)
        at, rounds = at + min(accepted + 1, len(truth)), rounds + 1
    return at, rounds
