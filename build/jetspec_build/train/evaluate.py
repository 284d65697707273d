"""How good a draft head is: tokens per round, acceptance by depth and calibration on held-out prompts.

Tokens per round of a set: all tokens that its rounds emitted, over all its rounds. The forward over the prompt, which
emits the first token, is no round. The mean is the plain mean of the sets. Trees count their root.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jetspec_triton.chat import PromptEncoder
from jetspec_triton.checkpoint import TargetConfig
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.sampling import Sampling
from jetspec_triton.weights import load_tensors
from torch import Tensor
from tqdm import tqdm

from .hashes import checkpoint_hash
from .known_text import KnownText, TextCache
from .replay import Drafts, Replay
from .rounds import Proposals, play_chain

BUDGETS = (4, 8, 16, 32, 64, 256)
TEMPERATURES = (0.0, 1.0)
SEED = 7  # of the first prompt's sampling; each next prompt has the next seed
BINS = 10
CURVE_TOKENS, CURVE_NODES = 48, 16
DEFINITION = __doc__.partition("\n\n")[2].strip().replace("\n", " ")


class HeldOut:
    """The target's texts of at most `tokens` answer tokens on held-out prompts, by set.

    Prompts that leave no room for the answer in the target's context are left out. Raises ValueError when none is left.
    """

    def __init__(
        self, target: Path, layers: tuple[int, ...], sets: Mapping[str, Sequence[str]], cache: Path, tokens: int
    ):
        self.config = TargetConfig.load(target)
        self.hash = checkpoint_hash(target)
        self.encoder = PromptEncoder(target, self.config.max_position_embeddings)
        self._cache = TextCache(cache, target, self.hash, layers)
        self._tokens, room = tokens, self.config.max_position_embeddings - tokens
        self.prompts = {}
        for name, texts in sets.items():
            encoded = [self.encoder.encode(text, self.encoder.has_chat) for text in texts]
            self.prompts[name] = [ids for ids in encoded if len(ids) <= room]
            if not self.prompts[name]:
                raise ValueError(
                    f"no prompt of {name} has at most {room} tokens; ask for shorter answers than {tokens}"
                )

    def texts(self, temperature: float) -> dict[str, list[tuple[KnownText, Sampling]]]:
        """Every text and what it was sampled with."""
        texts = {}
        for name, prompts in self.prompts.items():
            samplings = [Sampling(temperature, seed=SEED + i) for i in range(len(prompts))]
            made = self._cache.get(prompts, self._tokens, self.config.eos_token_ids, samplings)
            texts[name] = list(zip(made, samplings))
        return texts


def evaluate(
    head_directory: Path,
    target: Path,
    sets: Mapping[str, Sequence[str]],
    cache: Path,
    tokens: int = 128,
    budgets: Sequence[int] = BUDGETS,
    temperatures: Sequence[float] = TEMPERATURES,
    depth: int | None = None,
) -> dict:
    """The whole result as it is written to JSON; `sets` are held-out prompts by name, `cache` keeps the target's texts.

    depth: of the drafts, by default the head's.
    """
    head = DraftHead.load(head_directory)
    held_out = HeldOut(target, head.config.target_layer_ids, sets, cache, tokens)
    head.config.check_target(held_out.config)
    tables = embedding_and_lm_head(target)
    results = {}
    for temperature in temperatures:
        texts = held_out.texts(temperature)
        drafts = {
            name: [(Drafts(head, *tables, text, depth), sampling) for text, sampling in some]
            for name, some in texts.items()
        }
        results[temperature] = _at_temperature(drafts, held_out, budgets, f"T={temperature:g}")
    first, *others = results.values()
    result = {
        "definition": DEFINITION,
        "target": {"name": Path(target).name, "sha256": held_out.hash},
        "head": {"name": Path(head_directory).name, "sha256": checkpoint_hash(head_directory)},
        "prompts_per_set": {name: len(prompts) for name, prompts in held_out.prompts.items()},
        "max_tokens": tokens,
        "depth": depth or head.config.depth,
        "temperature": temperatures[0],
        **first,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jetspec-triton", "torch", "numpy", "tokenizers")},
        },
    }
    for temperature, other in zip(temperatures[1:], others):
        result[f"temperature_{temperature:g}"] = other
    if 0.0 in results and 1.0 in results:
        cold, hot = (results[t]["mean"]["as_served"] for t in (0.0, 1.0))
        result["temperature_1_over_0"] = {key: hot[key] / cold[key] for key in cold}
    return result


def embedding_and_lm_head(target: Path) -> tuple[Tensor, Tensor]:
    """The target's `(V, H)` tables, which the head shares."""
    tensors = load_tensors(target)
    embedding = torch.from_numpy(tensors["embed_tokens.weight"])
    tied = TargetConfig.load(target).tie_word_embeddings
    return embedding, embedding if tied else torch.from_numpy(tensors["lm_head.weight"])


class Curve:
    """Tokens per round of a head in training: the mean of the sets, greedy, as served, on a few short held-out texts."""

    def __init__(self, target: Path, layers: tuple[int, ...], sets: Mapping[str, Sequence[str]], cache: Path):
        self._held_out = HeldOut(target, layers, sets, cache, CURVE_TOKENS)
        self._tables = embedding_and_lm_head(target)

    def __call__(self, head: DraftHead) -> float:
        drafts = {
            name: [(Drafts(head, *self._tables, text), sampling) for text, sampling in some]
            for name, some in self._held_out.texts(0.0).items()
        }
        result = _at_temperature(drafts, self._held_out, (CURVE_NODES,), "held-out")
        return result["mean"]["as_served"][str(CURVE_NODES)]


def _at_temperature(
    drafts: Mapping[str, list[tuple[Drafts, Sampling]]], held_out: HeldOut, budgets: Sequence[int], name: str
) -> dict:
    config, ends = held_out.config, frozenset(held_out.config.eos_token_ids)
    depth = next(iter(drafts.values()))[0][0].depth
    context = max(len(one.text.tokens) for some in drafts.values() for one, _ in some) + 1
    sets = {
        key: {"as_served": {}, "head_alone": {"chain": _chain([one for one, _ in some], f"{name} {key} chain")}}
        for key, some in drafts.items()
    }
    for mode, lookup in (("as_served", True), ("head_alone", False)):
        for nodes in tqdm(budgets, f"{name} {mode}", leave=False):
            replay = Replay(held_out.encoder.tokenizer, config.vocab_size, depth, context, nodes, lookup)
            for key, some in drafts.items():
                played = [replay.play(one, sampling, ends) for one, sampling in some]
                rounds = max(sum(one.rounds for one in played), 1)
                sets[key]["tokens"] = sum(one.tokens for one in played)
                sets[key][mode][str(nodes)] = sets[key]["tokens"] / rounds
                accepted = np.sum([one.accepted_by_depth for one in played], axis=0) / rounds
                accepted = accepted if lookup else accepted[:depth]  # a look-up may go deeper than the head
                sets[key].setdefault(f"accepted_by_depth_{mode}", {})[str(nodes)] = accepted.tolist()
    return {
        "sets": sets,
        "mean": _mean(list(sets.values())),
        "reliability": reliability(one for some in drafts.values() for one, _ in some),
    }


def _chain(drafts: Sequence[Drafts], name: str) -> float:
    """Tokens per round of the head's single likeliest continuation, without look-up."""
    totals = np.zeros(2)
    for one in tqdm(drafts, name, leave=False):
        text = one.text
        found = [one.at(anchor) for anchor in range(text.prompt_length, len(text.tokens))]
        proposals = Proposals(*(np.stack(arrays) for arrays in zip(*found)))
        totals += play_chain(text.tokens[text.prompt_length :], proposals)
    return float(totals[0] / max(totals[1], 1))


def _mean(entries: list) -> dict | list | float:
    """The plain mean of equally shaped results."""
    if isinstance(entries[0], dict):
        return {key: _mean([entry[key] for entry in entries]) for key in entries[0]}
    return np.mean(entries, axis=0).tolist()


def stated_and_true(drafts: Drafts) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(stated probabilities, whether it came true) of all candidates of every depth below every anchor of a text.

    A depth counts as long as the tokens above it came true, as what the head states of it is below them.
    """
    tokens = drafts.text.tokens
    for anchor in range(drafts.text.prompt_length, len(tokens) - 1):
        ids, log_probs = drafts.at(anchor)
        above = ids.shape[1]
        for row, stated, token in zip(ids, log_probs, tokens[anchor + 1 :]):
            yield np.exp(stated if stated.ndim == 1 else stated[above]), row == token
            found = np.flatnonzero(row == token)
            if not len(found):
                break
            above = int(found[0])


def reliability(drafts: Iterator[Drafts]) -> dict:
    """How often candidates came true, by the probability that the head stated; the error is weighted by count."""
    count, mass, hits = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
    for one in drafts:
        for stated, true in stated_and_true(one):
            bins = np.minimum((stated * BINS).astype(int), BINS - 1)
            np.add.at(count, bins, 1)
            np.add.at(mass, bins, stated)
            np.add.at(hits, bins, true)
    table = [
        {"from": i / BINS, "to": (i + 1) / BINS, "count": int(n), "stated": float(m / n), "came_true": float(h / n)}
        for i, (n, m, h) in enumerate(zip(count, mass, hits))
        if n
    ]
    return {"table": table, "expected_error": float(np.abs(mass - hits).sum() / max(count.sum(), 1))}
