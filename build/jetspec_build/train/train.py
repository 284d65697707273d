"""Trains a draft head on a captured corpus.

Every random choice of a step follows from the seed and the step's number, so a run that is resumed from its state file
ends with the same weights as one that was never interrupted.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jetspec_triton.checkpoint import DraftConfig
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from torch import Tensor
from tqdm import tqdm

from .blocks import Blocks, choose_anchors, forward_blocks, make_blocks
from .capture import LAYERS
from .corpus import Corpus, Sample
from .initialise import choose_draft_vocab, new_head
from .loss import Candidates, depth_weights, sharpen, soft_cross_entropy


@dataclass(frozen=True)
class TrainConfig:
    """How long and how to train. With `steps` 0 the schedule follows the time until `minutes` are spent; on a CPU that is
    processor time a thread, so that a pause or a busy machine does not shorten the training.
    """

    steps: int = 0
    minutes: float = 20.0
    lr: float = 1e-3
    weight_decay: float = 0.0
    gamma: float = 4.0
    temperature: float = 1.0
    sequences: int = 4
    anchors: int = 48
    short_rows: int = 4
    short_share: float = 0.5
    candidates: int = 4096
    label_floor: float = 1e-3
    first_anchor: int = 24
    marginal_share: float = 0.3  # weight of the uncorrected depths' loss in a head with a parent correction
    seed: int = 1


class Trainer:
    """The head, its optimizer and the step counter; `save` and `load` keep all three."""

    def __init__(
        self,
        head: DraftHead,
        embedding: Tensor,
        lm_head: Tensor,
        corpus: Corpus,
        config: TrainConfig,
        captured: Sequence[int],
        device: str = "cpu",
    ):
        """embedding, lm_head: the target's, `(V, H)`. captured: the target layers whose features the corpus holds, the
        head's among them. device: where torch trains; on a GPU products are in bfloat16.
        """
        self.head, self.corpus, self.config, self.device = head.to(device).train(), corpus, config, device
        self.embedding, self._full_lm_head = embedding.to(device), lm_head.to(device)
        self._columns = [captured.index(layer) for layer in head.config.target_layer_ids]
        self._index_vocab()
        self.optimizer = torch.optim.AdamW(
            head.parameters(), lr=config.lr, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
        )
        self.step, self.seconds = 0, 0.0
        self.log: list[dict[str, float]] = []

    def _index_vocab(self) -> None:
        vocab = self.head.draft_vocab.long()
        self.lm_head = self._full_lm_head[vocab]
        self.draft_index = torch.full((len(self.embedding),), -1, device=self.device)
        self.draft_index[vocab] = torch.arange(len(vocab), device=self.device)

    def fused_layers(self, features: np.ndarray) -> np.ndarray:
        """The captured features `(T, n * H)` of the layers that the head reads."""
        layers = features.reshape(len(features), -1, self.head.config.hidden_size)
        return layers[:, self._columns].reshape(len(features), -1)

    @property
    def progress(self) -> float:
        """Share of the schedule that is done, 0 to 1."""
        config = self.config
        return self.step / config.steps if config.steps else min(1.0, self.seconds / (60 * config.minutes))

    def samples(self) -> list[Sample]:
        """The step's conversations: an epoch is a permutation that depends on the seed and the epoch's number."""
        count, size = self.config.sequences, len(self.corpus)
        places = [divmod(self.step * count + i, size) for i in range(count)]
        orders = {epoch: np.random.default_rng([self.config.seed, 0, epoch]).permutation(size) for epoch, _ in places}
        return [self.corpus[int(orders[epoch][i])] for epoch, i in places]

    def loss(self, rng: np.random.Generator) -> tuple[Tensor, int]:
        """The step's loss and its number of anchors."""
        config, samples = self.config, self.samples()
        short = rng.random() < config.short_share
        rows = min(config.short_rows, self.head.config.block_size) if short else self.head.config.block_size
        anchors = [
            choose_anchors(rng, len(s.tokens), s.answer_start, config.anchors, config.first_anchor) for s in samples
        ]
        blocks = Blocks(*(tensor.to(self.device) for tensor in self.blocks(samples, anchors, rows)))
        hidden, above, labels, probs, depths = [], [], [], [], []
        states = forward_blocks(self.head, self.embedding, blocks)
        for i, (sample, at) in enumerate(zip(samples, anchors)):
            block, depth = np.nonzero(at[:, None] + np.arange(rows) < len(sample.tokens))
            block, depth = block[depth > 0], depth[depth > 0]
            source = at[block] + depth - 1
            above.append(torch.from_numpy(sample.tokens[source].astype(np.int64)))
            hidden.append(states[i, torch.from_numpy(block), torch.from_numpy(depth)])
            labels.append(torch.from_numpy(sample.top_ids[source].astype(np.int64)))
            probs.append(torch.from_numpy(sample.top_probs[source].astype(np.float32)))
            depths.append(torch.from_numpy(depth))
        mass = sharpen(torch.cat(probs).to(self.device), config.temperature)
        index = self.draft_index[torch.cat(labels).to(self.device)].masked_fill(mass < config.label_floor, -1)
        candidates = Candidates(rng, index, len(self.lm_head), config.candidates)
        states, depth = torch.cat(hidden), torch.cat(depths).to(self.device)
        weights = depth_weights(depth.float(), config.gamma)
        loss = soft_cross_entropy(states, self.lm_head, index, mass, candidates)
        if self.head.parent is not None:
            below = depth > 1  # the first depth's parent is the anchor, which the block itself reads
            corrected = self.head.parent(states[below], self.embedding[torch.cat(above).to(self.device)[below]])
            conditional = soft_cross_entropy(corrected, self.lm_head, index[below], mass[below], candidates)
            share = config.marginal_share
            loss = loss.index_put((below.nonzero()[:, 0],), share * loss[below] + (1 - share) * conditional)
        return (loss * weights).sum() / weights.sum(), sum(map(len, anchors))

    def blocks(self, samples: Sequence[Sample], anchors: Sequence[np.ndarray], rows: int) -> Blocks:
        """The head's input at the anchors of every conversation."""
        features = [self.fused_layers(s.features) for s in samples]
        return make_blocks([s.tokens for s in samples], features, anchors, rows, self.head.config.mask_token_id)

    def train_step(self) -> None:
        began = self._clock()
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * schedule(self.progress)
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.device != "cpu"):
            loss, anchors = self.loss(np.random.default_rng([self.config.seed, 1, self.step]))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        entry = {"step": self.step, "loss": loss.item(), "anchors": anchors}
        self.seconds += self._clock() - began
        self.log.append({**entry, "seconds": self.seconds})

    def _clock(self) -> float:
        """Seconds of training: a thread's processor time on a CPU (see `TrainConfig`), else the wall's."""
        return time.process_time() / torch.get_num_threads() if self.device == "cpu" else time.monotonic()

    def save(self, path: Path) -> None:
        state = {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict(), "log": self.log}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        torch.save({**state, "step": self.step, "seconds": self.seconds}, partial)
        partial.rename(path)

    def load(self, path: Path) -> None:
        """Raises ValueError when the state is of a head of another shape."""
        state = torch.load(path, weights_only=True, map_location=self.device)
        try:
            self.head.load_state_dict(state["head"])
        except RuntimeError as error:
            raise ValueError(
                f"{path} is the state of another head ({str(error).splitlines()[1].strip()}); "
                "go on with the flags it was started with, or choose another --out or delete it"
            ) from None
        self._index_vocab()
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.log = state["step"], state["seconds"], state["log"]


def schedule(progress: float, warm_up: float = 0.04, last: float = 0.1) -> float:
    """Learning rate factor: linear warm-up, then a cosine from 1 to `last`."""
    if progress < warm_up:
        return max(progress / warm_up, 0.01)
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * (progress - warm_up) / (1 - warm_up)))


def train(
    trainer: Trainer,
    state: Path,
    save_minutes: float = 3.0,
    evaluate: Callable[[DraftHead], float] | None = None,
    evaluations: int = 8,
) -> None:
    """Run to the end of the schedule, keeping `state` up to date.

    evaluate: held-out tokens per round of a head; the log gets it `evaluations` times at even distances.
    """
    bar = tqdm(total=1000, initial=int(1000 * trainer.progress), unit="permille", mininterval=10)
    saved = trainer.seconds
    while trainer.progress < 1:
        share = int(trainer.progress * evaluations)
        trainer.train_step()
        if evaluate and int(trainer.progress * evaluations) > share:
            with torch.inference_mode():
                figure = evaluate(copy.deepcopy(trainer.head).cpu().eval())
            trainer.log[-1]["tokens_per_round"] = figure
            tqdm.write(f"step {trainer.step}: {figure:.2f} held-out tokens per round", file=sys.stderr)
        recent = trainer.log[-50:]
        loss, seconds = np.mean([entry["loss"] for entry in recent]), recent[-1]["seconds"] - recent[0]["seconds"]
        rate = sum(entry["anchors"] for entry in recent[1:]) / max(seconds, 1e-9)
        bar.set_postfix(step=trainer.step, loss=f"{loss:.3f}", anchors_per_s=f"{rate:.0f}", refresh=False)
        bar.update(int(1000 * trainer.progress) - bar.n)
        if trainer.seconds - saved > 60 * save_minutes:
            trainer.save(state)
            saved = trainer.seconds
    trainer.save(state)


def main(
    argv: Sequence[str] | None = None,
    evaluate: Callable[[DraftHead], float] | None = None,
    make: type[Trainer] = Trainer,
) -> None:
    """Train from captured shards; `evaluate` as in `train`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of captured shards")
    parser.add_argument("--out", type=Path, required=True, help="folder of the head")
    parser.add_argument("--state", type=Path, help="resumable state (default: <data>/../<name of out>.state)")
    parser.add_argument("--start-from", type=Path, help="a trained head whose weights to start from")
    parser.add_argument("--init", choices=("random", "last", "spread"), default="last")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS, help="target layers that the head reads")
    parser.add_argument("--device", default="cpu", help="where torch trains, e.g. cuda")
    parser.add_argument("--num-layers", type=int, default=1)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--block-size", type=int, default=8)
    parser.add_argument("--draft-vocab", type=int, default=16_384)
    parser.add_argument("--parent-size", type=int, default=256, help="width of the parent correction, 0 for none")
    parser.add_argument("--mask-token-id", type=int, default=5)
    for name, value in vars(TrainConfig()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    args = parser.parse_args(argv)
    config = TrainConfig(**{name: getattr(args, name) for name in vars(TrainConfig())})
    torch.set_flush_denormal(True)
    target, corpus = Llama.load(args.target), Corpus(args.data)
    draft = DraftConfig(
        hidden_size=target.config.hidden_size,
        intermediate_size=target.config.intermediate_size,
        num_layers=args.num_layers,
        num_heads=target.config.num_heads,
        num_kv_heads=args.kv_heads,
        head_dim=target.config.head_dim,
        vocab_size=target.config.vocab_size,
        rms_norm_eps=target.config.rms_norm_eps,
        rope_theta=target.config.rope_theta,
        block_size=args.block_size,
        target_layer_ids=tuple(args.layers),
        num_target_layers=target.config.num_layers,
        mask_token_id=args.mask_token_id,
        draft_vocab_size=args.draft_vocab,
        parent_size=args.parent_size,
    )
    vocab = choose_draft_vocab(corpus, draft.vocab_size, args.draft_vocab)
    head = new_head(draft, target, vocab, args.init, config.seed)
    if args.start_from:
        weights = DraftHead.load(args.start_from).state_dict()
        head.load_state_dict({**head.state_dict(), **weights, "draft_vocab": head.draft_vocab})
    tables = (target.embed_tokens.weight.detach(), target.lm_head.weight.detach())
    trainer = make(head, *tables, corpus, config, corpus.layers or args.layers, args.device)
    state = args.state or args.data.parent / f"{args.out.name}.state"
    if state.exists():
        trainer.load(state)
    train(trainer, state, evaluate=evaluate)
    head.save(args.out)
    flags = {name: str(value) for name, value in vars(args).items()}
    report = {"tokens": corpus.tokens, "conversations": len(corpus), "flags": flags}
    state.with_suffix(".json").write_text(json.dumps({**report, "log": trainer.log}))


if __name__ == "__main__":
    main()
