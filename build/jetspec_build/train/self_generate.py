"""Training text written by the target itself: it opens a user turn from a short opener, ends it, then answers it.

No third-party prompts are needed. A shard holds the tokens of finished conversations; shards already on disk are kept,
so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from jetspec_triton.modules.llama import KVCache, Llama

from .openers import OPENERS

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>"


class Conversation:
    """One row of the generation batch: forced tokens first, then sampled ones."""

    def __init__(self, rng: np.random.Generator, tokenizer: Tokenizer, limits: tuple[int, int]):
        opener = OPENERS[rng.integers(len(OPENERS))]
        self.ids = tokenizer.encode(SYSTEM + USER + opener, add_special_tokens=False).ids
        self.fed = 0
        self.answer_start = 0
        self.answer_temperature = float(rng.choice([0.0, 0.0, 0.0, 0.5, 0.8, 1.0]))
        self.end = tokenizer.token_to_id(END)
        self.bridge = tokenizer.encode("\n" + ASSISTANT, add_special_tokens=False).ids
        self.max_user = len(self.ids) + limits[0]
        self.max_answer = limits[1]

    @property
    def temperature(self) -> float:
        return self.answer_temperature if self.answer_start else 0.9

    def append(self, token: int) -> bool:
        """Take one sampled token; True when the conversation is complete."""
        if self.answer_start:
            self.ids.append(token)
            return token == self.end or len(self.ids) - self.answer_start >= self.max_answer
        if token == self.end or len(self.ids) >= self.max_user:
            self.ids += [self.end, *self.bridge]
            self.answer_start = len(self.ids)
        else:
            self.ids.append(token)
        return False


def sample(logits: torch.Tensor, temperatures: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Gumbel-max over the 50 likeliest tokens; temperature 0 is greedy. `(B, V)` -> `(B,)`."""
    top, index = logits.topk(50)
    noise = -torch.log(-torch.log(torch.rand(top.shape, generator=generator).clamp_(1e-20)))
    return index.gather(1, (top + temperatures[:, None] * noise).argmax(1, keepdim=True))[:, 0]


@torch.inference_mode()
def generate(model: Llama, tokenizer: Tokenizer, out: Path, tokens: int, batch: int, seed: int) -> None:
    """Write shards of about 20,000 tokens to `out` until it holds at least `tokens`."""
    out.mkdir(parents=True, exist_ok=True)
    shards = sorted(out.glob("shard-*.npz"))
    have = sum(len(np.load(s)["tokens"]) for s in shards)
    rng = np.random.default_rng([seed, len(shards)])
    generator = torch.Generator().manual_seed(seed * 1000 + len(shards))
    limits, length = (72, 256), 448
    rows = [Conversation(rng, tokenizer, limits) for _ in range(batch)]
    cache = KVCache.empty(model.config, batch, length)
    finished: list[Conversation] = []
    pending = 0
    bar = tqdm(total=tokens, initial=have, unit="tok", smoothing=0.05, mininterval=20)
    while have < tokens:
        fed = torch.tensor([row.fed for row in rows])
        ids = torch.tensor([[row.ids[row.fed]] for row in rows])
        span = int(fed.max()) + 1
        mask = torch.arange(span)[None, None] <= fed[:, None, None]
        hidden = model(ids, fed[:, None], mask, cache, fed[:, None]).hidden[:, 0]
        drawing = [i for i, row in enumerate(rows) if row.fed == len(row.ids) - 1]
        for row in rows:
            row.fed += 1
        if not drawing:
            continue
        temperatures = torch.tensor([rows[i].temperature for i in drawing])
        drawn = sample(model.logits(hidden[drawing]), temperatures, generator).tolist()
        for i, token in zip(drawing, drawn):
            if rows[i].append(token) or len(rows[i].ids) >= length:
                finished.append(rows[i])
                pending += len(rows[i].ids)
                rows[i] = Conversation(rng, tokenizer, limits)
        if pending >= 20_000 or have + pending >= tokens:
            _write(out / f"shard-{len(shards):04d}.npz", finished)
            shards.append(out)
            have += pending
            bar.update(pending)
            finished, pending = [], 0


def _write(path: Path, rows: list[Conversation]) -> None:
    np.savez(
        path,
        tokens=np.concatenate([np.asarray(row.ids, np.uint16) for row in rows]),
        lengths=np.asarray([len(row.ids) for row in rows], np.int32),
        answer_starts=np.asarray([row.answer_start for row in rows], np.int32),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    generate(Llama.load(args.target), tokenizer, args.out, args.tokens, args.batch, args.seed)


if __name__ == "__main__":
    main()
