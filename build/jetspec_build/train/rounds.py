"""Speculative rounds played over a known text: how many tokens a round gives, without running the target again."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jetspec_triton.modules.draft_head import DraftHead
from torch import Tensor

from .blocks import forward_blocks, make_blocks
from .greedy import GreedyText

WIDTH = 16
CHILDREN = 8  # most children of a node that the tree may take


class Proposals(NamedTuple):
    """What the head proposes at each of `A` anchors: the top `WIDTH` tokens of every depth."""

    ids: np.ndarray  # (A, depth, WIDTH)
    log_probs: np.ndarray  # (A, depth, WIDTH + 1, WIDTH), see `DraftHead.candidates`


@torch.inference_mode()
def propose(head: DraftHead, embedding: Tensor, text: GreedyText, anchors: np.ndarray, at_once: int = 32) -> Proposals:
    """The head's proposals at every anchor position `(A,)` of a text."""
    lm_head = embedding[head.draft_vocab.long()]
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
    """Accepted tokens of the argmax chain of one anchor; shapes as in `Proposals`."""
    count, above = 0, ids.shape[1]
    while count < min(len(ids), len(truth)):
        above = int(log_probs[count, above].argmax())
        if ids[count, above] != truth[count]:
            break
        count += 1
    return count


def accepted_in_tree(ids: np.ndarray, log_probs: np.ndarray, truth: Sequence[int], nodes: int) -> int:
    """Accepted tokens of the best-first tree of `nodes` nodes, its root included.

    Only the true path matters, so the tree is built by popping nodes in order until it is full; a node is on the true
    path when its parent is and its token is the text's next one.
    """
    depth = len(ids)
    best = 0
    heap: list = []

    def push(cost: float, level: int, above: int, true_parent: bool) -> None:
        row = log_probs[level, above]
        for w in np.argsort(-row)[:CHILDREN].tolist():
            heapq.heappush(heap, (cost - float(row[w]), level, w, true_parent))

    push(0.0, 0, ids.shape[1], True)
    for _ in range(nodes - 1):
        if not heap:
            break
        cost, level, rank, true_parent = heapq.heappop(heap)
        true = true_parent and level < len(truth) and ids[level, rank] == truth[level]
        if true:
            best = max(best, level + 1)
        if level + 1 < depth:
            push(cost, level + 1, rank, true)
    return best


def play(text: GreedyText, proposals: Proposals, nodes: int, counted: int) -> tuple[int, int]:
    """Tokens and rounds over the first `counted` answer tokens; `nodes` 0 is the argmax chain."""
    answer = text.tokens[text.prompt_length :]
    at, tokens, rounds = 0, 0, 0
    while at < min(counted, len(answer) - 1):
        truth = answer[at + 1 :]
        if nodes:
            accepted = accepted_in_tree(proposals.ids[at], proposals.log_probs[at], truth, nodes)
        else:
            accepted = accepted_in_chain(proposals.ids[at], proposals.log_probs[at], truth)
        emitted = min(accepted + 1, len(truth))
        at, tokens, rounds = at + emitted, tokens + emitted, rounds + 1
    return tokens, rounds
