"""Sampling in torch draws the tokens that NumPy draws."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetspec_triton import sampling
from jetspec_triton.device_sampling import gumbel, sample_rows
from jetspec_triton.sampling import Sampling

params = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.2, 0.9, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 7, 63, 64, 1000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    seed=st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 2**63, 2**64 - 1])),
)


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**31 - 1))
def test_the_noise_is_the_same(seed, position):
    ids = np.array([0, 1, 5, 151_935, 2**31 - 1])
    seeds = torch.from_numpy(np.array([seed], np.uint64).view(np.int64))
    mine = gumbel(seeds, torch.tensor([position]), torch.from_numpy(ids)[None])[0].numpy()
    assert np.allclose(mine, sampling.gumbel(seed, position, ids), rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(params, st.integers(0, 100_000)), min_size=1, max_size=9),
    spread=st.sampled_from([0.3, 2.0, 8.0]),
    coarse=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_row_draws_the_same_token(rows, spread, coarse, seed):
    logits = np.random.default_rng(seed).normal(size=(len(rows), 64)).astype(np.float32) * np.float32(spread)
    if coarse:  # ties, as half precision has them
        logits = np.round(logits)
    logits[:, 11] = -np.inf  # a banned token
    columns = [np.array([getattr(p, name) for p, _ in rows]) for name in ("temperature", "top_k", "top_p")]
    seeds = np.array([p.seed for p, _ in rows], np.uint64)
    positions = np.array([position for _, position in rows])
    drawn = sample_rows(torch.from_numpy(logits), positions, *columns, seeds).tolist()
    assert drawn == [sampling.sample(row, position, p) for row, (p, position) in zip(logits, rows)]


def test_a_large_vocabulary_and_no_rows():
    logits = np.random.default_rng(5).normal(size=(3, 50_000)).astype(np.float32) * 3
    for p in (Sampling(0.8, seed=3), Sampling(1.0, 40, 0.95, 2**64 - 3), Sampling(0.7, 0, 0.9, 8)):
        columns = (np.repeat(value, 3) for value in p[:3])
        drawn = sample_rows(torch.from_numpy(logits), np.arange(3), *columns, np.full(3, p.seed, np.uint64))
        assert drawn.tolist() == [sampling.sample(row, i, p) for i, row in enumerate(logits)]
    none = np.zeros(0)
    assert not len(sample_rows(torch.zeros(0, 64), none, none, none, none, none.astype(np.uint64)))
