"""Replayed text gives the rounds that the engines give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jetspec_build.train.known_text import KnownText, TextCache, known_texts
from jetspec_build.train.replay import Drafts, Replay
from jetspec_triton.drafts.torch import TorchDraft
from jetspec_triton.errors import ConfigError
from jetspec_triton.loop import DecodingLoop, collect
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama, causal_mask
from jetspec_triton.request import Request
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import LocalStep
from jetspec_triton.targets.torch import TorchTarget

from .tiny import DRAFT_CONFIG, LIMITS, VOCAB, ScriptedDraft, make_loop, run, tiny_head, tiny_target, tiny_tokenizer

PROMPTS, TOKENS = [[5, 6, 7], [9, 9, 3, 4], [40], [11, 12], [30, 2, 8], [21]], 90


def tied_target() -> Llama:
    target = tiny_target()
    target.embed_tokens.weight.copy_(target.lm_head.weight)
    return target


def useful_head(target) -> DraftHead:
    """The tiny target's last layer and norm, so that some of what it proposes is right."""
    head = tiny_head()
    with torch.no_grad():
        head.fc.weight.zero_()
        head.fc.weight[:, -DRAFT_CONFIG.hidden_size :] = torch.eye(DRAFT_CONFIG.hidden_size)
        head.norm.weight.copy_(target.norm.weight)
        head.layers[0].load_state_dict(target.layers[-1].state_dict(), strict=False)
    return head


def text_of(target, ids: list[int], prompt_length: int) -> KnownText:
    """The text with the float32 features that the engines see."""
    place = torch.arange(len(ids) - 1)[None]
    features = target(torch.tensor(ids[:-1])[None], place, causal_mask(len(ids) - 1)).features[0]
    return KnownText(np.asarray(ids), prompt_length, features.numpy())


@pytest.mark.parametrize("lookup", [True, False])
@pytest.mark.parametrize("nodes", [6, 24])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replay_gives_the_rounds_of_the_engines(temperature, nodes, lookup):
    target, tokenizer = tied_target(), tiny_tokenizer()
    head, end_ids = useful_head(target), frozenset(target.config.eos_token_ids)
    draft = TorchDraft(head, target.embed_tokens.weight, target.lm_head.weight, LIMITS.slots, LIMITS.context)
    step = LocalStep(TorchTarget(target, LIMITS), draft)
    loop = DecodingLoop(step, tokenizer, VOCAB, max_draft=nodes - 1, lookup=lookup)
    replay = Replay(tokenizer, VOCAB, DRAFT_CONFIG.depth, LIMITS.context, nodes, lookup)
    accepted = 0
    for seed, prompt in enumerate(PROMPTS):
        sampling = Sampling(temperature, seed=seed)
        make = lambda sink: Request(prompt, TOKENS, sampling, sink, end_ids=end_ids)  # noqa: B023, E731
        served = collect(loop, [make])[0]
        ids = [token for delta in served for token in delta.ids]
        text = text_of(target, prompt + ids, len(prompt))
        drafts = Drafts(head, target.embed_tokens.weight, target.lm_head.weight, text)
        replayed = replay.stream(drafts, sampling, end_ids)
        assert [delta.ids for delta in replayed] == [delta.ids for delta in served]
        assert replayed[-1].finish.accepted_by_depth == served[-1].finish.accepted_by_depth
        assert replayed[-1].finish.draft_tokens == served[-1].finish.draft_tokens
        accepted += served[-1].finish.accepted_tokens
    assert accepted > (5 if lookup else 0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_known_text_is_what_the_loop_emits(temperature):
    target, end_ids = tied_target(), frozenset(tiny_target().config.eos_token_ids)
    samplings = [Sampling(temperature, seed=seed) for seed in range(len(PROMPTS))]
    texts = known_texts(target, PROMPTS, TOKENS, end_ids, samplings)
    loop = make_loop(ScriptedDraft([], 0.0))
    loop.step.target = TorchTarget(target, LIMITS)
    for prompt, sampling, text in zip(PROMPTS, samplings, texts):
        emitted = run(loop, [prompt], TOKENS, sampling, end_ids=end_ids)[0]
        assert text.tokens.tolist() == prompt + emitted and text.prompt_length == len(prompt)
        again = text_of(target, text.tokens.tolist(), len(prompt))
        np.testing.assert_allclose(text.features, again.features, rtol=2e-3, atol=2e-3)


def test_a_cached_text_is_not_written_again(tmp_path):
    cache = TextCache(tmp_path, tmp_path / "no target", "hash", (0, 2))
    cache._loaded = tied_target()
    first = cache.get(PROMPTS, 6, (), [Sampling()] * len(PROMPTS))
    cache._loaded = None  # loading the target would fail
    again = cache.get(PROMPTS[:2], 6, (), [Sampling()] * 2)
    for one, other in zip(first, again):
        assert one.prompt_length == other.prompt_length
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.features, other.features)
    with pytest.raises(ConfigError):
        cache.get(PROMPTS[:1], 6, (), [Sampling(1.0, seed=1)])


def test_another_head_gets_its_layers_of_a_cached_text(tmp_path):
    caches = [TextCache(tmp_path, tmp_path / "no target", "hash", layers) for layers in ((0, 2), (2,))]
    caches[0]._loaded, caches[1]._loaded = tied_target(), tied_target()
    caches[1]._loaded.capture = (2,)
    both, last = (cache.get(PROMPTS[:1], 6, (), [Sampling()])[0] for cache in caches)
    assert len(list(tmp_path.iterdir())) == 3  # one text, two sets of features
    np.testing.assert_array_equal(both.tokens, last.tokens)
    np.testing.assert_allclose(both.features[:, 32:], last.features, rtol=2e-3, atol=2e-3)
