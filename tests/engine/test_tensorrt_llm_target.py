"""The TensorRT-LLM target's own code, with a CPU stand-in for the package that follows docs/tensorrt_llm.md."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jetspec_triton.loop import DecodingLoop
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import LocalStep
from jetspec_triton.targets.tensorrt_llm import TensorRTLLMTarget, cache_rows, lay_out
from jetspec_triton.targets.torch import TorchTarget

from ..unit.batches import BatchRow, chain_row, step_batch
from ..unit.tiny import CONFIG, LIMITS, VOCAB, ScriptedDraft, run, tiny_target, tiny_tokenizer
from .reference_runtime import ReferenceRuntime
from .target_rounds import assert_close, make_rows, play

TREE = np.array([-1, 0, 0, 1], np.int32)
SAMPLINGS = [Sampling(), Sampling(0.8, seed=7), Sampling(1.2, 10, 0.9, 2**64 - 1)]


def target() -> TensorRTLLMTarget:
    return TensorRTLLMTarget(CONFIG, LIMITS, ReferenceRuntime(tiny_target(), LIMITS.slots, cache_rows(LIMITS)))


def oracle() -> TorchTarget:
    return TorchTarget(tiny_target(), LIMITS)


def test_chunks_come_first_and_the_others_are_padded_to_the_widest():
    parents = [TREE, np.arange(-1, 4, dtype=np.int32), np.array([-1], np.int32), np.array([-1], np.int32)]
    tokens = [np.arange(10, 14), np.arange(20, 25), np.array([30]), np.array([40])]
    step, places = lay_out(make_rows([3, 1, 0, 2], [7, 9, 0, 5], parents, tokens))
    assert (step.slots, step.counts, step.cached, step.chunks) == ([1, 0, 3, 2], [5, 1, 4, 4], [9, 0, 7, 5], 2)
    assert step.tokens.tolist() == [20, 21, 22, 23, 24, 30, 10, 11, 12, 13, 40, 0, 0, 0]
    assert step.positions.tolist() == [9, 10, 11, 12, 13, 0, 7, 8, 8, 9, 5, 5, 5, 5]
    assert step.tokens[places].tolist() == np.concatenate(tokens).tolist()
    assert step.trees.mask[:, :, 0].tolist() == [[1, 3, 5, 11], [1, 2, 4, 8]]
    assert step.trees.lengths.tolist() == [4, 4]


def test_single_tokens_need_no_tree():
    step, places = lay_out(make_rows([1, 0], [3, 4], [np.array([-1], np.int32)] * 2, [np.array([5]), np.array([6])]))
    assert step.trees is None and step.chunks == 0 and step.counts == [1, 1] and places.tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(6))
@torch.inference_mode()
def test_random_rounds_equal_the_oracle_at_every_node(seed):
    play(target(), oracle(), rounds=25, seed=seed, tolerance=1e-4)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_step_of_ragged_rows_emits_what_the_oracle_does(sampling):
    mine, theirs = target(), oracle()
    prompts = [
        chain_row(s, 0, [(7 * s + 3 * i) % VOCAB for i in range(4 + 9 * s)], sampling=sampling) for s in (0, 1, 2)
    ]
    first = theirs.extend(step_batch(prompts))
    mine.extend(step_batch(prompts))
    rows = []
    for s, prompt in enumerate(prompts):
        root, length = int(first.emitted[s]), len(prompt.tokens)
        truth = continuation(prompt.tokens + [root], 3, sampling)
        tree = [root, (truth[0] + 1) % VOCAB, truth[0], (truth[1] + 1) % VOCAB, truth[1], truth[2]][: 2 * s + 2]
        parents = [-1, 0, 0, 2, 2, 4][: len(tree)]
        rows.append(BatchRow(s, length, tree, parents, sampling=sampling))
        if s == 0:
            rows[0] = rows[0]._replace(banned=(truth[0],), banned_until=1 << 20)
    rows.append(chain_row(3, 0, [1, 2, 3], sampling=sampling, emit=False))
    counts = []
    for _ in range(2):  # then what the accepted ones left is read again
        a, b = mine.extend(step_batch(rows)), theirs.extend(step_batch(rows))
        for name in ("emitted", "emitted_splits", "feature_splits"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist()
        assert_close(a.log_probs, b.log_probs, 1e-4)
        assert_close(a.features, b.features, 1e-4)
        assert isinstance(a.features, torch.Tensor)
        counts.append(np.diff(a.emitted_splits).tolist())
        rows = [
            chain_row(r.slot, r.length + n, [int(b.emitted[b.emitted_splits[i + 1] - 1])], sampling=sampling)
            for i, (r, n) in enumerate(zip(rows[:3], np.diff(b.feature_splits)))
        ]
    assert counts[0][1:] == [2, 4, 0] and counts[1] == [1, 1, 1]


def continuation(text: list[int], count: int, sampling: Sampling) -> list[int]:
    engine, text = oracle(), list(text)
    out = [int(engine.extend(step_batch([chain_row(0, 0, text, sampling=sampling)])).emitted[0])]
    while len(out) < count:
        row = chain_row(0, len(text) + len(out) - 1, out[-1:], sampling=sampling)
        out.append(int(engine.extend(step_batch([row])).emitted[0]))
    return out


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_the_whole_loop_speculates_without_changing_a_token(sampling):
    prompts = [[3, 5, 7], [11, 2] * 20, [1]]

    def texts(engine, draft) -> list[list[int]]:
        return run(DecodingLoop(LocalStep(engine, draft), tiny_tokenizer(), VOCAB), prompts, 24, sampling)

    plain = texts(oracle(), ScriptedDraft([], 0.0))
    truth = [prompt + text for prompt, text in zip(prompts, plain)]
    for accuracy in (0.0, 0.6, 1.0):
        assert texts(target(), ScriptedDraft(truth, accuracy)) == plain
