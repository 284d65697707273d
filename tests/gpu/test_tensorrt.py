"""The TensorRT engines on the demo model: built here, compared with the PyTorch oracle, run through the loop."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from jetspec_build.engines import Order, build_engine
from jetspec_triton.config import PLAN_FACTS
from jetspec_triton.drafts.base import DraftInput
from jetspec_triton.engines import open_step, open_target
from jetspec_triton.errors import ConfigError
from jetspec_triton.step import LocalStep
from jetspec_triton.targets.base import Forward, Rows
from jetspec_triton.tree import depths_of

from ..unit.batches import chain_row, step_batch
from .conftest import HEAD
from .test_torch_cuda import LIMITS, torch_step
from .texts import MODES, PROMPTS, shared_prefix, texts

CHAIN = [101, 2022, 318, 7, 4242, 90, 15, 3000, 11, 12]
TREE = [44, 51, 600, 7, 8, 9]
PARENTS = [-1, 0, 0, 1, 2, 4]


@pytest.fixture(scope="module")
def engines(tensorrt, demo_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("tensorrt")
    limits = {"slots": LIMITS.slots, "context": LIMITS.context, "rows_per_step": LIMITS.rows_per_step}
    build_engine(Order(demo_model, HEAD, "tensorrt", int8=False, dtype="bfloat16", **limits, draft_depth=7), out)
    return out


@pytest.fixture(scope="module")
def step(engines) -> LocalStep:
    return open_step(engines)


@pytest.fixture(scope="module")
def oracle(demo_model, cuda) -> LocalStep:
    return torch_step(demo_model, cuda)


def forwards(target) -> list[np.ndarray]:
    """Logits and features of a prompt, then of a tree below it, twice: the second run replays a captured graph."""
    outs = [_forward(target, 0, CHAIN, range(-1, len(CHAIN) - 1))]
    target.extend(step_batch([chain_row(1, 0, CHAIN, emit=False)]))
    outs += [_forward(target, len(CHAIN), TREE, PARENTS) for _ in range(2)]
    return [torch.as_tensor(part).float().cpu().numpy() for out in outs for part in (out.logits, out.features)]


def _forward(target, length: int, tokens, parents) -> Forward:
    """All nodes of one row in slot 1; nothing is committed."""
    one = lambda value: np.array([value], np.int32)  # noqa: E731
    tokens, parents = np.array(tokens, np.int32), np.array(parents, np.int32)
    splits, nodes = np.array([0, len(tokens)], np.int32), np.arange(len(tokens), dtype=np.int32)
    return target.forward(Rows(one(1), one(length), splits, tokens, parents, depths_of(parents, 1), nodes))


def test_the_target_computes_what_the_oracle_computes(step, oracle):
    for mine, theirs in zip(forwards(step.target), forwards(oracle.target), strict=True):
        assert mine.shape == theirs.shape
        cosine = (mine * theirs).sum(-1) / np.linalg.norm(mine, axis=-1) / np.linalg.norm(theirs, axis=-1)
        assert cosine.min() > 0.995


def test_a_replayed_graph_gives_what_the_first_run_gave(step):
    outs = forwards(step.target)
    assert np.array_equal(outs[2], outs[4]) and np.array_equal(outs[3], outs[5])


def test_the_head_proposes_what_the_oracle_proposes(step, oracle):
    features = forwards(oracle.target)[1]
    splits, emitted = np.array([0, len(CHAIN)], np.int32), np.array([44], np.int32)
    one = lambda value: np.array([value], np.int32)  # noqa: E731
    request = DraftInput(one(2), one(0), features, splits, emitted, np.array([0, 1], np.int32), one(1))
    for _ in range(2):
        ids, log_probs = step.draft.propose(request)
        expected_ids, expected = oracle.draft.propose(request)
        assert ids[0, 0, 0] == expected_ids[0, 0, 0]
        assert np.abs(log_probs - expected).max() < 0.2


def test_features_stay_on_the_device(step):
    out = step.target.extend(step_batch([chain_row(0, 0, CHAIN)]))
    assert isinstance(out.features, torch.Tensor) and out.features.is_cuda
    assert isinstance(out.emitted, np.ndarray)


@pytest.mark.parametrize("mode", MODES)
def test_speculation_keeps_the_text(step, demo_model, mode, record_property):
    """In half precision a row's rounding depends on the shape it ran in, so the share of equal ids is recorded, not assumed."""
    vocab = step.target.config.vocab_size
    plain = texts(step, demo_model, vocab, mode, speculate=False)
    assert sum(len(set(text)) > 4 for text in plain) == len(PROMPTS)
    share = shared_prefix(plain, texts(step, demo_model, vocab, mode, speculate=True))
    record_property("ids_equal_to_plain", round(share, 3))
    assert share > 0.5


def test_plans_of_another_version_are_refused(engines, tmp_path):
    shutil.copytree(engines, tmp_path, dirs_exist_ok=True)
    facts = json.loads((tmp_path / PLAN_FACTS).read_text())
    (tmp_path / PLAN_FACTS).write_text(json.dumps({**facts, "tensorrt": "1.2.3"}))
    with pytest.raises(ConfigError, match="1.2.3"):
        open_target(tmp_path)
