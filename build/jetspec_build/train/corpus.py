"""The captured training corpus on disk: conversations with the target's features and its likeliest next tokens.

A corpus is a folder of shards, each a folder of arrays (memory-mapped) over the shard's `N` tokens:
`tokens (N)`, `features (N, n_layers * H)`, `top_ids (N, K)`, `top_probs (N, K)`, and
`lengths`, `answer_starts`, one entry a conversation. `corpus.json` says what the arrays are of (`describe`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

DESCRIPTION = "corpus.json"
ARRAYS = ("tokens", "features", "top_ids", "top_probs", "lengths", "answer_starts")


class Sample(NamedTuple):
    """One conversation of `T` tokens. Row `i` of `top_ids` and `top_probs` is about token `i + 1`."""

    tokens: np.ndarray  # (T,)
    features: np.ndarray  # (T, n_layers * H) float16
    top_ids: np.ndarray  # (T, K)
    top_probs: np.ndarray  # (T, K) float16
    answer_start: int


class Corpus:
    """`layers`: the captured target layers in the order of the features, None in a folder that does not say."""

    def __init__(self, directory: Path):
        said = Path(directory) / DESCRIPTION
        self.layers: list[int] | None = json.loads(said.read_text())["layers"] if said.exists() else None
        self.shards = [
            {name: np.load(shard / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
            for shard in sorted(Path(directory).glob("shard-????"))
        ]
        if not self.shards:
            raise FileNotFoundError(f"{directory} holds no captured shard; run capture first")
        self.index = [
            (number, end - length, end, answer)
            for number, shard in enumerate(self.shards)
            for length, end, answer in zip(
                shard["lengths"].tolist(), np.cumsum(shard["lengths"]).tolist(), shard["answer_starts"].tolist()
            )
        ]

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Sample:
        number, start, end, answer_start = self.index[i]
        shard = self.shards[number]
        return Sample(*(shard[name][start:end] for name in ARRAYS[:4]), answer_start)

    @property
    def tokens(self) -> int:
        return sum(len(shard["tokens"]) for shard in self.shards)


def write_shard(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write one shard; its folder appears only once it is complete."""
    partial = path.with_name(path.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name in ARRAYS:
        np.save(partial / f"{name}.npy", arrays[name])
    os.rename(partial, path)


def id_type(vocab_size: int) -> type[np.integer]:
    """The type that token ids are stored in."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def describe(directory: Path, layers: Sequence[int], top: int, target: str) -> None:
    """Write `corpus.json` beside the shards, or check the one that is there.

    layers: captured target layers, in the order of the features; top: `K`; target: hash of its checkpoint.
    Raises ValueError when the folder's shards are of something else.
    """
    path, said = Path(directory) / DESCRIPTION, {"layers": list(layers), "top": top, "target": target}
    if path.exists():
        found = json.loads(path.read_text())
        if found != said:
            raise ValueError(f"{path} describes {found}, asked for is {said}; use another folder")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said))
