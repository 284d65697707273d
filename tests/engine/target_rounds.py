"""Random rounds of one target engine beside the oracle: chunks, single tokens, trees; any root path is committed."""

from __future__ import annotations

import numpy as np
from jetspec_triton.targets.base import Rows, TargetEngine
from jetspec_triton.tree import depths_of

from ..unit.trees import path_to


def assert_close(a, b, tolerance: float) -> None:
    """Within `tolerance` of the scale of `b`, the oracle's."""
    a, b = (np.asarray(x.float().cpu() if hasattr(x, "cpu") else x) for x in (a, b))
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max())


def random_parents(rng: np.random.Generator, nodes: int) -> np.ndarray:
    reach = int(rng.choice([1, 3, nodes]))
    return np.array([-1] + [int(rng.integers(max(0, i - reach), i)) for i in range(1, nodes)], np.int32)


def make_rows(slots, lengths, parents: list[np.ndarray], tokens: list[np.ndarray]) -> Rows:
    """Rows whose every node's logits are wanted."""
    splits = np.concatenate(([0], np.cumsum([len(p) for p in parents]))).astype(np.int32)
    depths = np.concatenate([depths_of(p, 1) for p in parents])
    return Rows(
        np.array(slots, np.int32),
        np.array(lengths, np.int32),
        splits,
        np.concatenate(tokens).astype(np.int32),
        np.concatenate(parents),
        depths,
        np.arange(splits[-1], dtype=np.int32),
    )


def play(engine: TargetEngine, oracle: TargetEngine, rounds: int, seed: int, tolerance: float) -> None:
    """Both run the same rounds; logits and features must agree at every node. Slots are also started anew."""
    rng = np.random.default_rng(seed)
    limits, lengths = engine.limits, np.zeros(engine.limits.slots, np.int64)
    for _ in range(rounds):
        slots = rng.permutation(limits.slots)[: rng.integers(1, limits.slots + 1)]
        lengths[slots[(lengths[slots] > limits.context - 40) | (rng.random(len(slots)) < 0.05)]] = 0
        most, parents, tokens = limits.rows_per_step // len(slots), [], []
        for slot in slots:
            kind = "chunk" if lengths[slot] == 0 else rng.choice(["chunk", "token", "tree", "tree"])
            nodes = 1 if kind == "token" else int(rng.integers(1, most + 1))
            parents.append(np.arange(-1, nodes - 1, dtype=np.int32) if kind == "chunk" else random_parents(rng, nodes))
            tokens.append(rng.integers(oracle.config.vocab_size, size=nodes))
        rows = make_rows(slots, lengths[slots], parents, tokens)
        mine, theirs = engine.forward(rows), oracle.forward(rows)
        assert_close(mine.logits, theirs.logits, tolerance)
        assert_close(mine.features, theirs.features, tolerance)
        for b, slot in enumerate(slots):
            kept = np.array(path_to(parents[b], int(rng.integers(len(parents[b])))), np.int64)
            for target in (engine, oracle):
                target.commit(int(slot), int(lengths[slot]), kept)
            lengths[slot] += len(kept)
        engine.settle()
