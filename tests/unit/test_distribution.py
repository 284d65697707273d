"""Emitted tokens follow the target's own distribution: chi-square over many seeds, through extend and its walk.

The logits are those of the tiny target, computed once. Every row is one request with its own seed; the joint distribution of
its first two tokens is compared with the product of the two exact softmaxes, wherever the round's border falls.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from jetspec_triton.sampling import Sampling, gumbel
from jetspec_triton.targets.base import Forward, Rows, TargetEngine, TargetLimits
from jetspec_triton.targets.torch import TorchTarget

from .batches import BatchRow, chain_row, step_batch
from .chi_square import chi_square_p
from .tiny import CONFIG, LIMITS, VOCAB, tiny_target
from .trees import path_to

PROMPT = [5, 9, 33, 2, 17]
MANY, SOME, ROWS = 20_500, 3_000, 500  # requests with seeds of their own; rows of one step
FIXED = np.array([0, 0, 0, 1, 1, 2], np.int32)  # parents of the drafted nodes, the root is 0
FLAT = np.zeros(4, np.int32)


class Table(TargetEngine):
    """Looks its logits up by the tokens after the prompt instead of computing them."""

    def __init__(self, logits: dict[tuple[int, ...], np.ndarray]):
        super().__init__(CONFIG, TargetLimits(ROWS, 512, 1 << 14))
        self.logits = logits

    def forward(self, rows: Rows) -> Forward:
        keys = []
        for b, slot in enumerate(rows.slots):
            start, stop = rows.splits[b], rows.splits[b + 1]
            tokens, parents = rows.tokens[start:stop].tolist(), rows.parents[start:stop].tolist()
            root = [] if rows.lengths[b] == 0 else [tokens[0]]
            first = len(PROMPT) - 1 if rows.lengths[b] == 0 else 0
            for node in range(first, stop - start):
                keys.append((*root, *(tokens[n] for n in path_to(parents, node)[first + 1 :])))
        logits = np.stack([self.logits[key] for key in keys])
        norm = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
        return Forward(logits, norm, np.zeros((len(rows.tokens), 1), np.float32))

    def commit(self, slot: int, length: int, kept: np.ndarray) -> None:
        pass


@pytest.fixture(scope="module")
def logits() -> dict[tuple[int, ...], np.ndarray]:
    """The tiny target's logits after the prompt, after every token, and after the two-token paths the trees can draft.

    One forward over a tree: the prompt, all tokens below it, and all tokens below the four likeliest.
    """
    model = tiny_target(2.5)  # flat enough that second choices are frequent
    target = TorchTarget(model, TargetLimits(1, 512, 512))
    paths = [(a,) for a in range(VOCAB)]
    out = _tree_logits(target, paths)
    likely = np.argsort(-out[()])[:4].tolist()
    return out | _tree_logits(target, paths + [(a, b) for a in likely for b in range(VOCAB)])


def _tree_logits(target: TorchTarget, paths: list[tuple[int, ...]]) -> dict[tuple[int, ...], np.ndarray]:
    count = len(PROMPT)
    nodes = {(): count - 1} | {path: count + i for i, path in enumerate(paths)}
    tokens = np.array(PROMPT + [path[-1] for path in paths], np.int32)
    parents = np.array([*range(-1, count - 1), *(nodes[path[:-1]] for path in paths)], np.int32)
    depths = np.array([*range(count), *(count - 1 + len(path) for path in paths)], np.int32)
    zero, split = np.zeros(1, np.int32), np.array([0, len(tokens)], np.int32)
    wanted = np.array(list(nodes.values()), np.int32)
    return dict(zip(nodes, target.forward(Rows(zero, zero, split, tokens, parents, depths, wanted)).logits))


def test_the_table_is_the_targets_plain_decoding(logits):
    target = TorchTarget(tiny_target(2.5), LIMITS)
    for path in [(), (3,), (int(logits[()].argmax()), 7)]:
        step = target.extend(step_batch([chain_row(0, 0, [*PROMPT, *path])]))
        row = logits[path]
        assert step.emitted[0] == row.argmax()
        assert step.log_probs[0] == pytest.approx(row.max() - np.logaddexp.reduce(row), abs=1e-4)


def softmax(logits: np.ndarray, params: Sampling) -> np.ndarray:
    """The distribution that the parameters ask for, the slow way."""
    scaled = logits.astype(np.float64) / params.temperature
    order = sorted(range(len(scaled)), key=lambda i: -scaled[i])[: params.top_k or None]
    weights = {i: math.exp(scaled[i] - scaled[order[0]]) for i in order}
    total, mass, kept = sum(weights.values()), 0.0, []
    for i in order:
        if mass >= params.top_p * total:
            break
        kept.append(i)
        mass += weights[i]
    out = np.zeros(len(scaled))
    out[kept] = [weights[i] / mass for i in kept]
    return out


def joint(logits: dict, params: Sampling) -> np.ndarray:
    """Exact probabilities of the first two tokens, `(V * V,)`."""
    first = softmax(logits[()], params)
    return np.concatenate([p * softmax(logits[token,], params) for token, p in enumerate(first)])


def tree(kind: str, logits: dict, seed: int, temperature: float) -> tuple[list[int], list[int]]:
    """Drafted (tokens, parents) below the prompt: none, the same for all seeds, or ranked with the target's own noise."""
    scores = logits[()] if kind != "noise" else logits[()] / temperature + gumbel(seed, len(PROMPT), np.arange(VOCAB))
    best = np.argsort(-logits[()])[:4].tolist()
    if kind == "none":
        return [], []
    if kind == "noise":  # flat: any token may be drafted, and deeper logits are tabled for the likeliest only
        return np.argsort(-scores)[: len(FLAT)].tolist(), FLAT.tolist()
    children = {token: np.argsort(-logits[token,])[:2].tolist() for token in best}
    return [*best[:3], *children[best[0]], children[best[1]][0]], FIXED.tolist()


def first_two(kind: str, logits: dict, params: Sampling, requests: int, spread: int = 1) -> np.ndarray:
    """The first two tokens of seeded requests, `(requests, 2)`."""
    engine, pairs = Table(logits), []
    count = len(PROMPT)
    for start in range(0, requests, ROWS):
        rows, again = [], []
        for slot in range(ROWS):
            own = params._replace(seed=(start + slot) * spread % 2**64)
            tokens, parents = tree(kind, logits, own.seed, params.temperature)
            parents = [*range(-1, count - 1), *(p + count - 1 for p in parents)]
            rows.append(BatchRow(slot, 0, PROMPT + tokens, parents, count, sampling=own))
        out = engine.extend(step_batch(rows))
        texts = [out.emitted[a:b].tolist() for a, b in zip(out.emitted_splits, out.emitted_splits[1:])]
        for row, text in zip(rows, texts):
            if len(text) == 1:  # the second token takes a second round
                again.append(chain_row(row.slot, count, text, sampling=row.sampling))
        if again:
            for row, token in zip(again, engine.extend(step_batch(again)).emitted.tolist()):
                texts[row.slot].append(token)
        pairs += [text[:2] for text in texts]
    return np.array(pairs)


def counts(pairs: np.ndarray) -> np.ndarray:
    return np.bincount(pairs[:, 0] * VOCAB + pairs[:, 1], minlength=VOCAB * VOCAB)


@pytest.fixture(scope="module")
def many(logits) -> np.ndarray:
    return first_two("fixed", logits, Sampling(1.0), MANY)


def test_the_first_two_tokens_follow_the_target(logits, many):
    assert len(many) >= 20_000
    assert chi_square_p(counts(many), joint(logits, Sampling(1.0))) > 1e-4


@pytest.mark.parametrize(
    "kind, params",
    [
        ("noise", Sampling(1.0)),
        ("fixed", Sampling(0.6)),
        ("fixed", Sampling(1.0, 5)),
        ("noise", Sampling(1.0, 0, 0.8)),
        ("fixed", Sampling(1.5, 12, 0.9)),
    ],
)
def test_every_parameter_and_tree_keeps_the_distribution(logits, kind, params):
    assert chi_square_p(counts(first_two(kind, logits, params, SOME)), joint(logits, params)) > 1e-4


def test_far_apart_seeds_follow_the_target(logits):
    pairs = first_two("fixed", logits, Sampling(1.0), SOME, spread=0x9E3779B97F4A7C15 // 3)
    assert chi_square_p(counts(pairs), joint(logits, Sampling(1.0))) > 1e-4


@pytest.mark.parametrize("kind", ["none", "noise"])
def test_the_same_seed_gives_the_same_tokens_with_any_tree(logits, many, kind):
    assert np.array_equal(first_two(kind, logits, Sampling(1.0), 500), many[:500])


def test_the_noise_that_ranks_drafts_is_the_noise_that_draws(logits):
    """Ranked with the target's own logits and noise, the first candidate is always the token."""
    pairs = first_two("noise", logits, Sampling(1.0), ROWS)
    ranked_first = [tree("noise", logits, seed, 1.0)[0][0] for seed in range(ROWS)]
    assert pairs[:, 0].tolist() == ranked_first


def test_the_statistic_sees_small_errors(logits, many):
    """The draws are enough to tell a slightly wrong temperature, top_k or top_p, and a second token that ignores the first."""
    for wrong in (Sampling(1.05), Sampling(1.0, 30), Sampling(1.0, 0, 0.97)):
        assert chi_square_p(counts(many), joint(logits, wrong)) < 1e-6
    shuffled = np.column_stack((many[:, 0], np.roll(many[:, 1], 1)))
    assert chi_square_p(counts(shuffled), joint(logits, Sampling(1.0))) < 1e-6
