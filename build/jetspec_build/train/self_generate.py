"""Training text written by the target itself: it opens a user turn from a short opener, ends it, then answers it.

No third-party prompts are needed. A shard holds the tokens of finished conversations; shards already on disk are kept,
so an interrupted run goes on where it stopped. With `captured` the features and likeliest tokens that training needs
are kept as they come by, so no second pass (`capture`) is needed for those shards.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from jetspec_triton.modules.llama import KVCache, Llama, causal_mask
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm

from .capture import LAYERS, TOP
from .corpus import write_shard
from .openers import OPENERS

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>"
MAX_USER, MAX_ANSWER, MAX_LENGTH = 72, 256, 448
SHARD_TOKENS = 20_000


class Seen:
    """What the target showed at each position of one conversation (see `corpus.Sample`)."""

    def __init__(self, features: int):
        self.features = np.zeros((MAX_LENGTH, features), np.float16)
        self.top_ids = np.zeros((MAX_LENGTH, TOP), np.uint16)
        self.top_probs = np.zeros((MAX_LENGTH, TOP), np.float16)


class Conversation:
    """One row of the generation batch: forced tokens first, then sampled ones. The first `fed` are in the cache."""

    def __init__(self, rng: np.random.Generator, tokenizer: Tokenizer, fed: int, seen: Seen):
        opener = OPENERS[rng.integers(len(OPENERS))]
        self.ids = tokenizer.encode(SYSTEM + USER + opener, add_special_tokens=False).ids
        self.fed, self.seen = fed, seen
        self.answer_start = 0
        self.answer_temperature = float(rng.choice([0.0, 0.0, 0.0, 0.5, 0.8, 1.0]))
        self.end = tokenizer.token_to_id(END)
        self.bridge = tokenizer.encode("\n" + ASSISTANT, add_special_tokens=False).ids
        self.max_user = len(self.ids) + MAX_USER

    @property
    def temperature(self) -> float:
        return self.answer_temperature if self.answer_start else 0.9

    def append(self, token: int) -> bool:
        """Take one sampled token; True when the conversation is complete."""
        if self.answer_start:
            self.ids.append(token)
            full = len(self.ids) - self.answer_start >= MAX_ANSWER or len(self.ids) >= MAX_LENGTH
            return token == self.end or full
        if token == self.end or len(self.ids) >= self.max_user:
            self.ids += [self.end, *self.bridge]
            self.answer_start = len(self.ids)
        else:
            self.ids.append(token)
        return False


def sample(top: Tensor, index: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Gumbel-max over the likeliest logits `(B, K)` and their ids; temperature 0 is greedy. Returns ids `(B,)`."""
    noise = -torch.log(-torch.log(torch.rand(top.shape, generator=generator).clamp_(1e-20)))
    return index.gather(1, (top + temperatures[:, None] * noise).argmax(1, keepdim=True))[:, 0]


class Batch:
    """`size` conversations in lockstep; the system prompt's cache rows and features are computed once for all."""

    def __init__(self, model: Llama, tokenizer: Tokenizer, size: int, seed: tuple[int, int]):
        self.model, self.tokenizer = model, tokenizer
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed[0] * 1000 + seed[1])
        self.cache = KVCache.empty(model.config, size, MAX_LENGTH)
        prefix = torch.tensor([tokenizer.encode(SYSTEM, add_special_tokens=False).ids])
        self.prefix = prefix.shape[1]
        one = KVCache.empty(model.config, 1, self.prefix)
        place = torch.arange(self.prefix)[None]
        self.prefix_features = model(prefix, place, causal_mask(self.prefix), one, place).features[0].half().numpy()
        self.cache.k[:, :, :, : self.prefix] = one.k
        self.cache.v[:, :, :, : self.prefix] = one.v
        self.rows = [self.open() for _ in range(size)]

    def open(self) -> Conversation:
        seen = Seen(self.prefix_features.shape[1])
        seen.features[: self.prefix] = self.prefix_features
        return Conversation(self.rng, self.tokenizer, self.prefix, seen)

    def step(self) -> list[Conversation]:
        """Feed one token to every row; returns the conversations that ended."""
        rows = self.rows
        fed = torch.tensor([row.fed for row in rows])
        ids = torch.tensor([[row.ids[row.fed]] for row in rows])
        mask = torch.arange(int(fed.max()) + 1)[None, None] <= fed[:, None, None]
        output = self.model(ids, fed[:, None], mask, self.cache, fed[:, None])
        logits = self.model.logits(output.hidden[:, 0])
        top, index = logits.topk(50)
        probs = (top[:, :TOP] - logits.logsumexp(-1, keepdim=True)).exp().numpy()
        drawn = sample(top, index, torch.tensor([row.temperature for row in rows]), self.generator).tolist()
        finished = []
        for i, row in enumerate(rows):
            row.seen.features[row.fed] = output.features[i, 0].numpy()
            row.seen.top_ids[row.fed], row.seen.top_probs[row.fed] = index[i, :TOP].numpy(), probs[i]
            row.fed += 1
            if row.fed == len(row.ids) and row.append(drawn[i]):
                finished.append(row)
                rows[i] = self.open()
        return finished


@torch.inference_mode()
def generate(
    model: Llama, tokenizer: Tokenizer, out: Path, captured: Path | None, tokens: int, size: int, seed: int
) -> None:
    """Write shards of about `SHARD_TOKENS` tokens to `out` until it holds at least `tokens`."""
    out.mkdir(parents=True, exist_ok=True)
    shards = sorted(out.glob("shard-????.npz"))
    number, have = len(shards), sum(len(np.load(shard)["tokens"]) for shard in shards)
    batch = Batch(model, tokenizer, size, (seed, number))
    finished: list[Conversation] = []
    bar = tqdm(total=tokens, initial=have, unit="tok", smoothing=0.05, mininterval=20)
    while have < tokens:
        ended = batch.step()
        finished += ended
        bar.update(sum(len(row.ids) for row in ended))
        pending = sum(len(row.ids) for row in finished)
        if pending >= SHARD_TOKENS or have + pending >= tokens:
            _write(finished, out / f"shard-{number:04d}.npz", captured)
            number, have, finished = number + 1, have + pending, []


def _write(rows: list[Conversation], path: Path, captured: Path | None) -> None:
    arrays = {
        "tokens": np.concatenate([np.asarray(row.ids, np.uint16) for row in rows]),
        "lengths": np.asarray([len(row.ids) for row in rows], np.int32),
        "answer_starts": np.asarray([row.answer_start for row in rows], np.int32),
    }
    if captured:
        names = ("features", "top_ids", "top_probs")
        seen = {name: np.concatenate([getattr(row.seen, name)[: len(row.ids)] for row in rows]) for name in names}
        write_shard(captured / path.stem, {**arrays, **seen})
    np.savez(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of generated shards")
    parser.add_argument("--captured", type=Path, help="folder of captured shards")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS, help="captured target layers")
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    model = Llama.load(args.target, tuple(args.layers))
    generate(model, tokenizer, args.out, args.captured, args.tokens, args.batch, args.seed)


if __name__ == "__main__":
    main()
