"""Runs the frozen target over generated conversations and stores what training needs of it (see `corpus`).

Shards already captured are kept, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jetspec_triton.modules.llama import Llama, causal_mask
from torch import Tensor
from tqdm import tqdm

from .corpus import describe, id_type, write_shard
from .hashes import checkpoint_hash

TOP = 32
LAYERS = (1, 8, 14, 21, 27)


def top_tokens(logits: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest ids `(R, count)` and their probabilities float16, of logits `(R, V)`."""
    top, ids = logits.topk(count)
    probs = (top - logits.logsumexp(-1, keepdim=True)).exp()
    return ids.numpy().astype(id_type(logits.shape[-1])), probs.numpy().astype(np.float16)


def batches(lengths: np.ndarray, tokens: int) -> Iterator[np.ndarray]:
    """Indices of conversations of similar length, at most about `tokens` padded tokens a batch."""
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        take = max(1, tokens // int(lengths[order[0]]))
        yield order[:take]
        order = order[take:]


@torch.inference_mode()
def capture_shard(model: Llama, source: Path, out: Path, batch_tokens: int = 4096) -> int:
    """Capture one generated shard to `out`; returns its number of tokens."""
    shard = np.load(source)
    tokens, lengths = shard["tokens"], shard["lengths"]
    starts = np.cumsum(lengths) - lengths
    features = np.empty((len(tokens), len(model.capture) * model.config.hidden_size), np.float16)
    top = min(TOP, model.config.vocab_size)
    top_ids = np.empty((len(tokens), top), id_type(model.config.vocab_size))
    top_probs = np.empty((len(tokens), top), np.float16)
    for rows in batches(lengths, batch_tokens):
        longest = int(lengths[rows[0]])
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for row, i in enumerate(rows):
            ids[row, : lengths[i]] = torch.from_numpy(tokens[starts[i] : starts[i] + lengths[i]].astype(np.int64))
        positions = torch.arange(longest).expand(len(rows), -1)
        output = model(ids, positions, causal_mask(longest).expand(len(rows), -1, -1))
        for row, i in enumerate(rows):
            span = slice(starts[i], starts[i] + lengths[i])
            features[span] = output.features[row, : lengths[i]].numpy()
            top_ids[span], top_probs[span] = top_tokens(model.logits(output.hidden[row, : lengths[i]]), top)
    arrays = {"tokens": tokens, "lengths": lengths, "answer_starts": shard["answer_starts"]}
    write_shard(out, {**arrays, "features": features, "top_ids": top_ids, "top_probs": top_probs})
    return len(tokens)


def capture(model: Llama, source: Path, out: Path, limit: int | None = None) -> None:
    """Capture every shard of `source` that `out` lacks (at most `limit` of them)."""
    waiting = [path for path in sorted(source.glob("shard-????.npz")) if not (out / path.stem).exists()]
    bar = tqdm(unit="tok", mininterval=10)
    for path in waiting[:limit]:
        bar.update(capture_shard(model, path, out / path.stem))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of generated shards")
    parser.add_argument("--out", type=Path, required=True, help="folder of captured shards")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    args = parser.parse_args()
    model = Llama.load(args.target, tuple(args.layers))
    describe(args.out, args.layers, min(TOP, model.config.vocab_size), checkpoint_hash(args.target))
    capture(model, args.data, args.out)


if __name__ == "__main__":
    main()
