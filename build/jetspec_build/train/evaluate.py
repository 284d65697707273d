"""Tokens per round of a draft head on held-out prompts, played over the target's greedy text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from jetspec_triton.chat import PromptEncoder
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from torch import Tensor

from .greedy import GreedyText, greedy_texts
from .prompt_sets import SETS, load_prompts, spread
from .rounds import play, propose

BUDGETS = (4, 8, 16, 32, 64)


def held_out_texts(
    target: Path, layers: tuple[int, ...], cache: Path, count: int, tokens: int
) -> dict[str, list[GreedyText]]:
    """Greedy texts of `count` prompts a set; they are kept in `cache`, as they depend on the target alone."""
    texts, model = {}, None
    for name in SETS:
        path = cache / f"{target.name}-{name}-{count}-{tokens}-{'.'.join(map(str, layers))}.pt"
        if not path.exists():
            model = model or Llama.load(target, layers)
            encoder = PromptEncoder(target, model.config.max_position_embeddings)
            prompts = [encoder.encode(text, chat=True) for text in spread(load_prompts(name, cache), count)]
            made = greedy_texts(model, prompts, tokens, model.config.eos_token_ids[0])
            torch.save([tuple(map(torch.as_tensor, text)) for text in made], path)
        saved = torch.load(path, weights_only=True)
        texts[name] = [GreedyText(ids.numpy(), int(length), features.numpy()) for ids, length, features in saved]
    return texts


def evaluate_set(head: DraftHead, embedding: Tensor, texts: list[GreedyText], counted: int) -> dict:
    """Tokens per round by budget and top-1 accuracy by depth over one set."""
    totals = {key: np.zeros(2) for key in ("chain", *map(str, BUDGETS))}
    hits, tried = np.zeros(head.config.depth), np.zeros(head.config.depth)
    for text in texts:
        answer = text.tokens[text.prompt_length :]
        starts = np.arange(min(counted, len(answer) - 1))
        if not len(starts):
            continue
        proposals = propose(head, embedding, text, text.prompt_length + starts)
        for key in totals:
            totals[key] += play(text, proposals, 0 if key == "chain" else int(key), counted)
        for depth in range(head.config.depth):
            known = starts[starts + depth + 1 < len(answer)]
            hits[depth] += (proposals.ids[known, depth, 0] == answer[known + depth + 1]).sum()
            tried[depth] += len(known)
    return {
        "prompts": len(texts),
        "tokens": int(totals["chain"][0]),
        "tokens_per_round": {key: float(tokens / rounds) for key, (tokens, rounds) in totals.items()},
        "top1_by_depth": (hits / tried).tolist(),
    }


def evaluate(head: DraftHead, embedding: Tensor, texts: dict[str, list[GreedyText]], counted: int) -> dict:
    """`evaluate_set` of every set and the plain mean over sets."""
    result = {name: evaluate_set(head, embedding, some, counted) for name, some in texts.items()}
    sets = list(result.values())
    result["mean"] = {
        "tokens_per_round": {
            key: float(np.mean([s["tokens_per_round"][key] for s in sets])) for key in sets[0]["tokens_per_round"]
        },
        "top1_by_depth": np.mean([s["top1_by_depth"] for s in sets], axis=0).tolist(),
    }
    return result


def table(result: dict) -> str:
    """The result as text, one line a set."""
    keys = list(result["mean"]["tokens_per_round"])
    lines = ["set        " + "".join(f"{key:>7}" for key in keys) + "   top-1 by depth"]
    for name, entry in result.items():
        values = "".join(f"{entry['tokens_per_round'][key]:7.2f}" for key in keys)
        lines.append(f"{name:11}{values}   " + " ".join(f"{value:.2f}" for value in entry["top1_by_depth"]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(".cache/train/heldout"))
    parser.add_argument("--prompts", type=int, default=15, help="prompts a set")
    parser.add_argument("--tokens", type=int, default=128, help="answer tokens a prompt that rounds start in")
    parser.add_argument("--out", type=Path, help="where to write the result as JSON")
    args = parser.parse_args()
    head = DraftHead.load(args.head)
    beyond = args.tokens + head.config.block_size
    texts = held_out_texts(args.target, head.config.target_layer_ids, args.cache, args.prompts, beyond)
    embedding = Llama.load(args.target).embed_tokens.weight.detach()
    result = evaluate(head, embedding, texts, args.tokens)
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
