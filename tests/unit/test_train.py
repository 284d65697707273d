"""Head training: resuming, blocks side by side, the loss, played rounds, and prompts kept apart."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from jetspec_build.train import blocks as B
from jetspec_build.train.capture import capture_shard
from jetspec_build.train.corpus import ARRAYS, Corpus, describe, write_shard
from jetspec_build.train.initialise import choose_draft_vocab, new_head
from jetspec_build.train.known_text import known_texts
from jetspec_build.train.loss import Candidates, soft_cross_entropy
from jetspec_build.train.prompt_file import PromptFile
from jetspec_build.train.rounds import accepted_in_chain, play_chain, propose
from jetspec_build.train.self_generate import generate
from jetspec_build.train.train import TrainConfig, Trainer, train
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.modules.llama import Llama, causal_mask

TARGET = TargetConfig("llama", 32, 48, 3, 4, 2, 8, 64, 1e-5, 1e4, True, 256, (0,))
DRAFT = DraftConfig(32, 48, 1, 4, 2, 8, 64, 1e-5, 1e4, 5, (0, 2), 3, 1, 40, 6)


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    return Llama(TARGET, DRAFT.target_layer_ids).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def corpus(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    lengths = rng.integers(12, 30, 14).astype(np.int32)
    tokens = rng.integers(0, 64, lengths.sum()).astype(np.uint16)
    np.savez(folder / "shard-0000.npz", tokens=tokens, lengths=lengths, answer_starts=lengths // 2)
    capture_shard(target, folder / "shard-0000.npz", folder / "captured" / "shard-0000", batch_tokens=64)
    return Corpus(folder / "captured")


def fresh_head(target, corpus):
    return new_head(DRAFT, target, choose_draft_vocab(corpus, 64, 40), "last", seed=3)


def fresh_trainer(target, corpus, steps=6, **flags):
    config = TrainConfig(steps=steps, sequences=3, anchors=6, short_rows=3, candidates=24, first_anchor=2, **flags)
    return Trainer(
        fresh_head(target, corpus),
        target.embed_tokens.weight.detach(),
        target.lm_head.weight.detach(),
        corpus,
        config,
        DRAFT.target_layer_ids,
    )


def test_capture_is_the_targets_own_forward(target, corpus):
    sample = corpus[3]
    ids = torch.from_numpy(sample.tokens.astype(np.int64))[None]
    output = target(ids, torch.arange(ids.shape[1])[None], causal_mask(ids.shape[1]))
    np.testing.assert_allclose(sample.features, output.features[0], atol=2e-3)
    probs = target.logits(output.hidden[0]).softmax(-1)
    np.testing.assert_allclose(sample.top_probs, probs.topk(32).values, atol=1e-3)


def some_prompts():
    rows = [[7, 8, 9], [7, 8, 9, 30, 1, 2], [7, 8, 9, 31, 32, 1, 2]]
    arrays = (np.concatenate(rows), [3, 6, 7], [1, 0, 0], [7, 8, 9], [1, 2], [1])
    return PromptFile(*(np.asarray(array, np.int32) for array in arrays))


def test_features_kept_while_generating_are_those_of_a_second_pass(target, tmp_path):
    prompts = some_prompts()
    generate(target, prompts, tmp_path, tmp_path / "first", tokens=1200, size=3, seed=0)
    capture_shard(target, tmp_path / "shard-0000.npz", tmp_path / "second" / "shard-0000")
    first, second = Corpus(tmp_path / "first"), Corpus(tmp_path / "second")
    assert len(first) == len(second) > 2
    for kept, again in zip(first, second):
        np.testing.assert_array_equal(kept.tokens, again.tokens)
        np.testing.assert_array_equal(kept.tokens[kept.answer_start - 2 : kept.answer_start], prompts.suffix)
        np.testing.assert_allclose(kept.features[:-1], again.features[:-1], atol=2e-3)
        np.testing.assert_allclose(kept.top_probs[3:-1], again.top_probs[3:-1], atol=1e-3)


def test_a_corpus_says_what_its_features_are(tmp_path):
    write_shard(tmp_path / "shard-0000", {name: np.zeros(1, np.int32) for name in ARRAYS})
    assert Corpus(tmp_path).layers is None  # nothing was said
    describe(tmp_path, [0, 2], 32, "hash")
    describe(tmp_path, [0, 2], 32, "hash")
    assert Corpus(tmp_path).layers == [0, 2]
    with pytest.raises(ValueError, match="use another folder"):
        describe(tmp_path, [0, 1], 32, "hash")


def test_ids_of_a_large_vocabulary_are_kept_whole(tmp_path):
    torch.manual_seed(0)
    model = Llama(replace(TARGET, vocab_size=70_000, num_layers=1), (0,)).eval().requires_grad_(False)
    rows = PromptFile(*(np.asarray(a, np.int32) for a in ([69_999, 5], [2], [0], [], [], [])))
    generate(model, rows, tmp_path, tmp_path / "captured", tokens=300, size=2, seed=0)
    sample = Corpus(tmp_path / "captured")[0]
    assert sample.tokens[0] == 69_999 and sample.top_ids.max() > 1 << 16


def test_generation_needs_no_tokenizer():
    code = "import sys, jetspec_build.train.self_generate; sys.exit('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_bfloat16_layers_show_nearly_the_same(tmp_path):
    torch.manual_seed(0)
    model = Llama(TARGET, DRAFT.target_layer_ids).eval().requires_grad_(False)
    generate(model, some_prompts(), tmp_path, tmp_path / "kept", 500, size=3, seed=0, dtype=torch.bfloat16)
    capture_shard(model.float(), tmp_path / "shard-0000.npz", tmp_path / "again" / "shard-0000")
    for kept, again in zip(Corpus(tmp_path / "kept"), Corpus(tmp_path / "again")):
        scale = np.abs(again.features).max()
        np.testing.assert_allclose(kept.features[:-1], again.features[:-1], atol=0.05 * scale)


def test_generation_goes_on_where_it_stopped(target, tmp_path):
    generate(target, some_prompts(), tmp_path, None, tokens=400, size=3, seed=0)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    generate(target, some_prompts(), tmp_path, None, tokens=900, size=3, seed=0)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(after) > len(before) and before.items() <= after.items()
    assert sum(len(np.load(path)["tokens"]) for path in tmp_path.iterdir()) >= 900


def test_resumed_training_ends_with_the_same_weights(target, corpus, tmp_path):
    unbroken = fresh_trainer(target, corpus)
    train(unbroken, tmp_path / "unbroken")
    broken = fresh_trainer(target, corpus)
    for _ in range(3):
        broken.train_step()
    broken.save(tmp_path / "broken")
    resumed = fresh_trainer(target, corpus)
    resumed.load(tmp_path / "broken")
    train(resumed, tmp_path / "broken")
    assert resumed.step == unbroken.step == 6
    for name, tensor in unbroken.head.state_dict().items():
        assert torch.equal(tensor, resumed.head.state_dict()[name]), name


def test_a_state_of_another_head_is_refused(target, corpus, tmp_path):
    trainer = fresh_trainer(target, corpus)
    trainer.save(tmp_path / "state")
    other = fresh_trainer(target, corpus)
    other.head.fc = torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match="state of another head .*fc.bias.*another --out"):
        other.load(tmp_path / "state")


def test_training_lowers_the_loss(target, corpus):
    trainer = fresh_trainer(target, corpus, steps=40, short_share=0.0)
    while trainer.progress < 1:
        trainer.train_step()
    losses = [entry["loss"] for entry in trainer.log]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


def test_blocks_side_by_side_equal_blocks_alone(target, corpus):
    head, embedding = fresh_head(target, corpus), target.embed_tokens.weight
    sample = corpus[0]
    anchors = np.array([2, 3, 7, len(sample.tokens) - 2])
    rows = DRAFT.block_size
    together = B.forward_blocks(
        head, embedding, B.make_blocks([sample.tokens], [sample.features], [anchors], rows, DRAFT.mask_token_id)
    )
    for i, anchor in enumerate(anchors):
        fused = head.fuse(torch.from_numpy(sample.features[:anchor].astype(np.float32)))[None]
        ids = torch.full((1, rows), DRAFT.mask_token_id)
        ids[0, 0] = int(sample.tokens[anchor])
        mask = torch.cat((torch.ones(1, rows, anchor, dtype=torch.bool), causal_mask(rows)), dim=2)
        positions = torch.arange(anchor, anchor + rows)[None]
        alone = head(fused, torch.arange(anchor)[None], embedding[ids], positions, mask)
        torch.testing.assert_close(together[0, i], alone[0], atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing(target, corpus):
    head, embedding = fresh_head(target, corpus), target.embed_tokens.weight
    samples = [corpus[0], corpus[1]]
    anchors = [np.array([3, 5]), np.array([2, 4, 8])]
    both = B.make_blocks([s.tokens for s in samples], [s.features for s in samples], anchors, 4, 1)
    together = B.forward_blocks(head, embedding, both)
    for i, (sample, at) in enumerate(zip(samples, anchors)):
        alone = B.forward_blocks(head, embedding, B.make_blocks([sample.tokens], [sample.features], [at], 4, 1))
        torch.testing.assert_close(together[i, : len(at)], alone[0], atol=1e-5, rtol=1e-5)


def test_loss_equals_the_plain_soft_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    hidden, lm_head = torch.randn(5, 8, generator=generator), torch.randn(30, 8, generator=generator)
    labels = torch.tensor([[0, 3, -1], [29, 2, 1], [-1, -1, -1], [4, 5, 6], [7, 8, 9]])
    probs = torch.rand(5, 3, generator=generator)
    log_probs = (hidden @ lm_head.T).log_softmax(-1)
    expected = [-sum(p * log_probs[r, i] for i, p in zip(labels[r], probs[r]) if i >= 0) for r in range(5)]
    everything = Candidates(np.random.default_rng(0), labels, 30, 0)
    torch.testing.assert_close(soft_cross_entropy(hidden, lm_head, labels, probs, everything), torch.tensor(expected))


def test_sampled_candidates_estimate_the_whole_sum():
    generator = torch.Generator().manual_seed(0)
    hidden, lm_head = torch.randn(4, 8, generator=generator), 0.3 * torch.randn(400, 8, generator=generator)
    labels = torch.arange(12).view(4, 3)
    rng, sums = np.random.default_rng(0), []
    for _ in range(300):
        some = Candidates(rng, labels, 400, 100)
        assert len(some.rows) == 100 and (some.slots[labels] >= 0).all()
        sums.append((hidden @ lm_head[some.rows].T + some.offset).exp().sum(-1))
    exact = (hidden @ lm_head.T).exp().sum(-1)
    torch.testing.assert_close(torch.stack(sums).mean(0), exact, rtol=0.02, atol=0)


def test_a_correction_is_learnt_and_changes_what_stands_below_a_candidate(target, corpus):
    trainer = fresh_trainer(target, corpus, steps=12, short_share=0.0)
    embedding, lm_head = trainer.embedding, trainer.lm_head
    hidden = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        before = trainer.head.candidates(hidden, embedding, lm_head, 5)[1]
    assert torch.allclose(before, before[:, :, -1:].expand_as(before), atol=1e-4)  # it starts as no correction
    while trainer.progress < 1:
        trainer.train_step()
    with torch.inference_mode():
        ids, after = trainer.head.candidates(hidden, embedding, lm_head, 5)
    assert torch.equal(after[:, 0], after[:, 0, -1:].expand_as(after[:, 0]))  # the first depth stands below the anchor
    assert not torch.allclose(after[:, 1:, :-1], after[:, 1:, -1:].expand_as(after[:, 1:, :-1]), atol=1e-2)
    full = hidden @ lm_head.T
    for above in range(5):  # rescored tokens and the untouched mass of all others make one distribution
        x = trainer.head.parent(hidden[0, 1], embedding[ids[0, 0, above]])
        rescored = full[0, 1].exp()
        index = full[0, 1].topk(5).indices
        rescored[index] = (lm_head[index] @ x).exp()
        torch.testing.assert_close(after[0, 1, above], (rescored / rescored.sum()).log()[index], atol=1e-4, rtol=1e-4)


def test_the_likeliest_chain_follows_the_candidate_above():
    ids = np.array([[5, 6], [7, 8], [9, 1]])
    probs = np.array([[[0.6, 0.3]] * 3, [[0.5, 0.4], [0.1, 0.8], [0.3, 0.3]], [[0.9, 0.05]] * 3])
    assert accepted_in_chain(ids, np.log(probs), [5, 7, 9]) == 3
    assert accepted_in_chain(ids, np.log(probs), [5, 8, 9]) == 1
    assert accepted_in_chain(ids, np.log(probs), [6, 8, 9]) == 0
    assert accepted_in_chain(ids, np.log(probs[:, ::-1]), [6, 7]) == 0
    probs[0] = [0.3, 0.6]
    assert accepted_in_chain(ids, np.log(probs), [6, 8, 9]) == 3


def test_chains_emit_the_whole_text(target, corpus):
    head, embedding = fresh_head(target, corpus), target.embed_tokens.weight
    prompts = [[3, 9, 4], [8, 8, 2, 1, 5], [7, 6]]
    texts = known_texts(target, prompts, new_tokens=14, ends=(0,))
    for text, prompt in zip(texts, prompts):
        alone = known_texts(target, [prompt], new_tokens=14, ends=(0,))[0]
        np.testing.assert_array_equal(text.tokens, alone.tokens)
        np.testing.assert_allclose(text.features, alone.features, atol=2e-3)
        answer = text.tokens[len(prompt) :]
        tokens, rounds = play_chain(
            answer, propose(head, embedding, embedding, text, len(prompt) + np.arange(len(answer) - 1))
        )
        assert tokens == len(answer) - 1 and rounds <= tokens
