"""Training text written by the target itself: it answers given prompts, and user turns that it first completes itself.

Prompts come encoded (`prompt_file`), so only torch, safetensors, numpy and tqdm are needed here. A shard holds the tokens
of finished conversations; shards already on disk are kept, so an interrupted run goes on where it stopped. With
`captured` the features and likeliest tokens that training needs are kept as they come by, so no second pass (`capture`)
is needed for those shards.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from jetspec_triton.modules.llama import KVCache, Llama, causal_mask
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from .capture import LAYERS, TOP
from .corpus import describe, id_type, write_shard
from .hashes import checkpoint_hash
from .prompt_file import PromptFile

MAX_USER, MAX_ANSWER, MAX_LENGTH = 72, 256, 448
SAMPLED_FROM = 50  # the likeliest tokens
SHARD_TOKENS = 20_000


class Conversation:
    """One row of the generation batch: forced tokens first, then sampled ones. The first `fed` are in the cache."""

    def __init__(self, rng: np.random.Generator, prompts: PromptFile, length: int):
        self.ids, opening = prompts[int(rng.integers(len(prompts)))]
        self.fed = max(len(prompts.prefix) - 1, 0)  # a prompt may be the prefix alone; its last token is fed again
        self.length, self.prompts = length, prompts
        self.answer_start = 0 if opening else len(self.ids)
        self.answer_temperature = float(rng.choice([0.0, 0.0, 0.0, 0.5, 0.8, 1.0]))
        self.max_user = len(self.ids) + MAX_USER

    @property
    def temperature(self) -> float:
        return self.answer_temperature if self.answer_start else 0.9

    def append(self, token: int) -> bool:
        """Take one sampled token; True when the conversation is complete."""
        if self.answer_start:
            self.ids.append(token)
            full = len(self.ids) - self.answer_start >= MAX_ANSWER or len(self.ids) >= self.length
            return full or token in self.prompts.ends
        if token == self.prompts.suffix[0] or token in self.prompts.ends or len(self.ids) >= self.max_user:
            self.ids += self.prompts.suffix.tolist()
            self.answer_start = len(self.ids)
        else:
            self.ids.append(token)
        return False


def sample(top: Tensor, index: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Gumbel-max over the likeliest logits `(B, K)` and their ids; temperature 0 is greedy. Returns ids `(B,)`."""
    noise = -torch.log(-torch.log(torch.rand(top.shape, generator=generator, device=top.device).clamp_(1e-20)))
    return index.gather(1, (top + temperatures[:, None] * noise).argmax(1, keepdim=True))[:, 0]


class Batch:
    """`size` conversations in lockstep; the template's prefix is computed once for all.

    dtype: of the layers. The LM head stays float32: bfloat16 logits are too coarse for probabilities.
    """

    def __init__(
        self, model: Llama, prompts: PromptFile, size: int, seed: tuple[int, int], device: str, dtype: torch.dtype
    ):
        self.lm_head = model.lm_head.weight.detach().to(device, torch.float32)
        self.model = model.to(device, dtype)
        self.prompts, self.device = prompts, device
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator(device).manual_seed(seed[0] * 1000 + seed[1])
        config = model.config
        self.length = min(MAX_LENGTH, config.max_position_embeddings)
        self.top = min(TOP, config.vocab_size)
        self.cache = KVCache.empty(config, size, self.length, dtype, device)
        width = len(model.capture) * config.hidden_size
        self.features = torch.zeros(size, self.length, width, dtype=torch.float16, device=device)
        self.top_ids = torch.zeros(size, self.length, self.top, dtype=torch.int32, device=device)
        self.top_probs = torch.zeros(size, self.length, self.top, dtype=torch.float16, device=device)
        self._prefill(torch.from_numpy(prompts.prefix.astype(np.int64)).to(device)[None])
        self.rows = [self.open() for _ in range(size)]

    def _prefill(self, prefix: Tensor) -> None:
        length = prefix.shape[1]
        if length == 0:
            return
        one = KVCache.empty(self.model.config, 1, length, self.cache.k.dtype, self.device)
        place = torch.arange(length, device=self.device)[None]
        output = self.model(prefix, place, causal_mask(length, self.device), one, place)
        self.features[:, :length] = output.features.half()
        self.cache.k[:, :, :, :length], self.cache.v[:, :, :, :length] = one.k, one.v

    def open(self) -> Conversation:
        return Conversation(self.rng, self.prompts, self.length)

    def step(self) -> list[dict[str, np.ndarray]]:
        """Feed one token to every row; returns the conversations that ended."""
        rows, device = self.rows, self.device
        fed = torch.tensor([row.fed for row in rows])
        longest, fed = int(fed.max()), fed.to(device)
        ids = torch.tensor([[row.ids[row.fed]] for row in rows], device=device)
        mask = torch.arange(longest + 1, device=device)[None, None] <= fed[:, None, None]
        output = self.model(ids, fed[:, None], mask, self.cache, fed[:, None])
        logits = F.linear(output.hidden[:, 0].float(), self.lm_head)
        top, index = logits.topk(min(SAMPLED_FROM, logits.shape[1]))
        probs = (top[:, : self.top] - logits.logsumexp(-1, keepdim=True)).exp()
        every = torch.arange(len(rows), device=device)
        self.features[every, fed] = output.features[:, 0].half()
        self.top_ids[every, fed], self.top_probs[every, fed] = index[:, : self.top].int(), probs.half()
        temperatures = torch.tensor([row.temperature for row in rows], device=device)
        drawn = sample(top, index, temperatures, self.generator).tolist()
        finished = []
        for i, row in enumerate(rows):
            row.fed += 1
            if row.fed == len(row.ids) and row.append(drawn[i]):
                finished.append(self._finish(i))
                rows[i] = self.open()
        return finished

    def _finish(self, i: int) -> dict[str, np.ndarray]:
        """The arrays of one conversation (see `corpus.Sample`); its last token was not fed, so its row is zero."""
        row = self.rows[i]
        seen = {"features": self.features, "top_ids": self.top_ids, "top_probs": self.top_probs}
        arrays = {name: array[i, : len(row.ids)].cpu().numpy().copy() for name, array in seen.items()}
        for array in arrays.values():
            array[row.fed :] = 0
        type_ = id_type(self.model.config.vocab_size)
        arrays |= {"tokens": np.asarray(row.ids, type_), "top_ids": arrays["top_ids"].astype(type_)}
        return arrays | {"answer_starts": np.array([row.answer_start], np.int32)}


@torch.inference_mode()
def generate(
    model: Llama,
    prompts: PromptFile,
    out: Path,
    captured: Path | None,
    tokens: int,
    size: int,
    seed: int,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
) -> None:
    """Write shards of about `SHARD_TOKENS` tokens to `out` until it holds at least `tokens`.

    dtype: of the target's layers, by default float32 on the CPU and bfloat16 elsewhere.
    """
    out.mkdir(parents=True, exist_ok=True)
    shards = sorted(out.glob("shard-????.npz"))
    number, have = len(shards), sum(len(np.load(shard)["tokens"]) for shard in shards)
    if have >= tokens:
        return
    dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    batch = Batch(model, prompts, size, (seed, number), device, dtype)
    finished: list[dict[str, np.ndarray]] = []
    bar = tqdm(total=tokens, initial=have, unit="tok", smoothing=0.05, mininterval=20)
    while have < tokens:
        ended = batch.step()
        finished += ended
        bar.update(sum(len(row["tokens"]) for row in ended))
        pending = sum(len(row["tokens"]) for row in finished)
        if pending >= SHARD_TOKENS or have + pending >= tokens:
            _write(finished, out / f"shard-{number:04d}.npz", captured)
            number, have, finished = number + 1, have + pending, []


def _write(rows: list[dict[str, np.ndarray]], path: Path, captured: Path | None) -> None:
    arrays = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    arrays["lengths"] = np.asarray([len(row["tokens"]) for row in rows], np.int32)
    if captured:
        write_shard(captured / path.stem, arrays)
    np.savez(path, **{name: arrays[name] for name in ("tokens", "lengths", "answer_starts")})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="encoded prompts, made by prompt_file")
    parser.add_argument("--out", type=Path, required=True, help="folder of generated shards")
    parser.add_argument("--captured", type=Path, help="folder of captured shards")
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS, help="captured target layers")
    parser.add_argument("--tokens", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    model = Llama.load(args.target, tuple(args.layers))
    if args.captured:
        describe(args.captured, args.layers, min(TOP, model.config.vocab_size), checkpoint_hash(args.target))
    prompts = PromptFile.load(args.prompts)
    generate(model, prompts, args.out, args.captured, args.tokens, args.batch, args.seed, args.device)


if __name__ == "__main__":
    main()
