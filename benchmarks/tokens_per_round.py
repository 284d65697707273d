"""Tokens per target forward on held-out prompts as the product drafts them (head and look-up joined), by tree size.

Runs the loop in this process with a budget that always takes the whole tree, so the figure does not depend on the machine's
speed. The tree size counts the root.

    .venv/bin/python benchmarks/tokens_per_round.py --out benchmarks/results/tokens_per_round.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from jetspec_build.train.prompt_sets import SETS, load_prompts, spread
from jetspec_triton.chat import PromptEncoder
from jetspec_triton.config import Manifest
from jetspec_triton.engines import open_step
from jetspec_triton.loop import DecodingLoop, collect
from jetspec_triton.request import Request
from jetspec_triton.sampling import Sampling
from tqdm import tqdm

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, default=ROOT / "engines" / "smollm2-135m-instruct")
    parser.add_argument("--prompts-per-set", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    step, manifest = open_step(args.engine), Manifest.load(args.engine)
    encoder = PromptEncoder(args.engine, manifest.context)
    target = step.target.config
    cache = ROOT / ".cache" / "train" / "heldout"
    prompts = {n: [encoder.encode(p, True) for p in spread(load_prompts(n, cache), args.prompts_per_set)] for n in SETS}
    table: dict[str, dict[str, float]] = {}
    for size in args.sizes:
        loop = DecodingLoop(step, encoder.tokenizer, target.vocab_size, max_draft=size - 1)
        row = {}
        for name, ids in prompts.items():
            ratios = []
            for prompt in tqdm(ids, desc=f"{size} nodes, {name}", leave=False):
                sampling = Sampling(args.temperature, seed=7)

                def make(sink, prompt=prompt, sampling=sampling):
                    return Request(prompt, args.max_tokens, sampling, sink, end_ids=frozenset(target.eos_token_ids))

                finish = collect(loop, [make])[0][-1].finish
                if finish.rounds > 1:
                    ratios.append((finish.output_tokens - 1) / (finish.rounds - 1))
            row[name] = statistics.mean(ratios)
        row["mean"] = statistics.mean(row.values())
        table[str(size)] = row
        print(f"{size:3} nodes: " + ", ".join(f"{name} {value:.2f}" for name, value in row.items()), flush=True)
    if args.out:
        result = {"temperature": args.temperature, "max_tokens": args.max_tokens, "prompts_per_set": args.prompts_per_set,
                  "draft_depth": manifest.draft_depth, "tokens_per_round": table}  # fmt: skip
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
