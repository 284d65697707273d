"""Draft blocks of several anchors side by side in one forward of the head.

An anchor at position `p` has `p` committed rows before it. Its block `[anchor, MASK, ...]` stands at positions `p`,
`p + 1` and so on; row `d` predicts the token at `p + d`. A block row sees the context rows strictly before
its anchor and its own block's rows up to itself, so every block comes out exactly as if it were drafted alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jetspec_triton.modules.draft_head import DraftHead
from torch import Tensor
from torch.nn import functional as F


class Blocks(NamedTuple):
    """`B` sequences of at most `C` context rows with `A` blocks of `D` rows each."""

    features: Tensor  # (B, C, n_layers * H) float32
    ids: Tensor  # (B, A, D) anchor and mask tokens
    anchors: Tensor  # (B, A) anchor positions
    used: Tensor  # (B, A) boolean, False for padding

    @property
    def positions(self) -> Tensor:
        """`(B, A, D)`."""
        return self.anchors[..., None] + torch.arange(self.ids.shape[2], device=self.anchors.device)


def make_blocks(
    tokens: Sequence[np.ndarray], features: Sequence[np.ndarray], anchors: Sequence[np.ndarray], rows: int, mask_id: int
) -> Blocks:
    """Pad sequences (`tokens` `(T,)`, `features` `(T, F)`, `anchors` `(A,)`) into a batch of blocks of `rows` rows."""
    batch, context, most = len(tokens), max(int(a.max()) for a in anchors), max(len(a) for a in anchors)
    padded = torch.zeros(batch, context, features[0].shape[1])
    ids = torch.full((batch, most, rows), mask_id)
    positions, used = torch.ones(batch, most, dtype=torch.long), torch.zeros(batch, most, dtype=torch.bool)
    for i, (text, rows_in, at) in enumerate(zip(tokens, features, anchors)):
        length = min(context, len(rows_in))
        padded[i, :length] = torch.from_numpy(np.asarray(rows_in[:length], np.float32))
        ids[i, : len(at), 0] = torch.from_numpy(text[at].astype(np.int64))
        positions[i, : len(at)] = torch.from_numpy(at.astype(np.int64))
        used[i, : len(at)] = True
    return Blocks(padded, ids, positions, used)


def block_mask(anchors: Tensor, context: int, rows: int) -> Tensor:
    """`(B, A)` anchor positions -> `(B, A * rows, context + A * rows)` boolean."""
    batch, count = anchors.shape
    sees_context = torch.arange(context, device=anchors.device) < anchors.repeat_interleave(rows, dim=1)[..., None]
    own = torch.block_diag(*[torch.ones(rows, rows, dtype=torch.bool, device=anchors.device).tril()] * count)
    return torch.cat((sees_context, own.expand(batch, -1, -1)), dim=2)


def forward_blocks(head: DraftHead, embedding: Tensor, blocks: Blocks) -> Tensor:
    """Hidden states `(B, A, D, H)` of every block row. `embedding` is the target's `(V, H)`."""
    batch, count, rows = blocks.ids.shape
    context = blocks.features.shape[1]
    hidden = head(
        head.fuse(blocks.features),
        torch.arange(context, device=blocks.ids.device).expand(batch, -1),
        F.embedding(blocks.ids.flatten(1), embedding),
        blocks.positions.flatten(1),
        block_mask(blocks.anchors, context, rows),
    )
    return hidden.view(batch, count, rows, -1)


def choose_anchors(rng: np.random.Generator, length: int, answer_start: int, count: int, first: int) -> np.ndarray:
    """At most `count` positions of `first .. length - 2`, sorted; the answer's are twice as likely as the user's."""
    positions = np.arange(max(1, first), length - 1)
    weights = np.where(positions >= answer_start - 1, 2.0, 1.0)
    chosen = rng.choice(positions, min(count, len(positions)), replace=False, p=weights / weights.sum())
    return np.sort(chosen)
