"""What each choice of the draft head is worth: every variant trained from scratch for the same processor time.

Needs captured training text (`jetspec train` leaves it in .cache/train/runs/*/captured). Variants already in the results file
are kept, so an interrupted run goes on. Tokens per round are greedy on held-out prompts, see `jetspec eval-head`.

    .venv/bin/python benchmarks/ablations.py --data .cache/train/captured --minutes 3
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from jetspec_build.train.blocks import Blocks, forward_blocks, make_blocks
from jetspec_build.train.corpus import Sample
from jetspec_build.train.evaluate import HeldOut, embedding_and_lm_head, evaluate
from jetspec_build.train.prompt_sets import SETS, load_prompts, spread
from jetspec_build.train.train import Trainer
from jetspec_build.train.train import main as train
from jetspec_triton.modules.draft_head import DraftHead

ROOT = Path(__file__).parents[1]
BASE = {"--kv-heads": "9", "--candidates": "3072", "--sequences": "2", "--anchors": "72", "--seed": "5"}
VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "baseline": ("1 layer, target layers 1 8 14 21 27, block 8, gamma 4, 16,384 tokens, parent correction 256", {}),
    "no-parent": ("no parent correction", {"--parent-size": "0"}),
    "two-layers": ("2 layers", {"--num-layers": "2"}),
    "three-fused": ("target layers 1 14 27", {"--layers": "1 14 27"}),
    "last-fused": ("target layer 27 alone", {"--layers": "27"}),
    "six-fused": ("target layers 1 8 14 21 27 29", {"--layers": "1 8 14 21 27 29"}),
    "block-4": ("block 4", {"--block-size": "4", "--short-share": "0"}),
    "block-16": ("block 16", {"--block-size": "16"}),
    "uniform-loss": ("gamma 0: all depths weigh the same", {"--gamma": "0"}),
    "steep-loss": ("gamma 2", {"--gamma": "2"}),
    "vocab-8k": ("8,192 tokens proposed", {"--draft-vocab": "8192"}),
    "vocab-all": ("all 49,152 tokens proposed", {"--draft-vocab": "49152"}),
    "random-init": ("random weights at the start", {"--init": "random"}),
    "second-pass": ("block rows read the true tokens above them, as a second forward over the tree would", {}),
}


class TokensKnown(Trainer):
    """Trains a head for a second forward over the tree: its block rows hold the tokens above, not masks."""

    def blocks(self, samples: Sequence[Sample], anchors: Sequence[np.ndarray], rows: int) -> Blocks:
        return with_tokens(super().blocks(samples, anchors, rows), [s.tokens for s in samples])


def with_tokens(blocks: Blocks, texts: Sequence[np.ndarray]) -> Blocks:
    ids = blocks.ids.clone()
    for i, text in enumerate(texts):
        at = blocks.positions[i].clamp_max(len(text) - 1)
        ids[i] = torch.from_numpy(text.astype(np.int64))[at]
    return blocks._replace(ids=ids)


@torch.inference_mode()
def right_below(head: DraftHead, tables, texts, known: bool) -> list[float]:
    """How often the head's first choice is right at each depth, below a path that is right."""
    hits, tried = np.zeros(head.config.depth), np.zeros(head.config.depth)
    embedding, lm_head = tables[0], tables[1][head.draft_vocab.long()]
    for text in texts:
        anchors = np.arange(text.prompt_length, len(text.tokens) - head.config.block_size)
        for start in range(0, len(anchors), 32):
            at = anchors[start : start + 32]
            size, mask = head.config.block_size, head.config.mask_token_id
            blocks = make_blocks([text.tokens], [text.features], [at], size, mask)
            hidden = forward_blocks(head, embedding, with_tokens(blocks, [text.tokens]) if known else blocks)[0, :, 1:]
            truth = torch.from_numpy(text.tokens[at[:, None] + np.arange(1, size)].astype(np.int64))
            if head.parent is not None and not known:
                hidden[:, 1:] = head.parent(hidden[:, 1:], embedding[truth[:, :-1]])
            said = head.draft_vocab.long()[(hidden @ lm_head.T).argmax(-1)]
            hits += (said == truth).sum(0).numpy()
            tried += len(at)
    return (hits / tried).tolist()


def run(name: str, args, held: dict) -> dict:
    flags = BASE | {"--target": str(args.target), "--data": str(args.data), "--minutes": str(args.minutes)}
    out = args.work / name
    flags |= {"--out": str(out), "--state": str(args.work / f"{name}.state")} | VARIANTS[name][1]
    known = name == "second-pass"
    if known:
        flags["--parent-size"] = "0"
    words = [word for pair in flags.items() for part in pair for word in part.split(" ")]
    train(words, make=TokensKnown if known else Trainer)
    log = json.loads((args.work / f"{name}.json").read_text())
    head = DraftHead.load(out)
    texts = HeldOut(args.target, head.config.target_layer_ids, held, args.heldout / "texts", args.tokens).texts(0.0)
    flat = [text for some in texts.values() for text, _ in some]
    entry = {
        "what": VARIANTS[name][0],
        "minutes": log["log"][-1]["seconds"] / 60,
        "anchors": sum(e["anchors"] for e in log["log"]),
        "right_below": right_below(head, embedding_and_lm_head(args.target), flat, known),
    }
    if not known:  # its candidates exist only once a first head has drafted the tree
        budgets = (8, 16, 64)
        entry["mean"] = evaluate(out, args.target, held, args.heldout / "texts", args.tokens, budgets, (0.0,))["mean"]
    return entry


def table(results: dict) -> str:
    lines = [
        "| variant | anchors seen | chain | 8 | 16 | 64 | as served 16 | right below a right path, depths 1 2 3 4 |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for entry in results["variants"].values():
        right = " ".join(f"{v:.2f}" for v in entry["right_below"][:4])
        figures = ["-"] * 5
        if "mean" in entry:
            alone, served = entry["mean"]["head_alone"], entry["mean"]["as_served"]
            figures = [f"{v:.2f}" for v in (*(alone[k] for k in ("chain", "8", "16", "64")), served["16"])]
        lines.append(f"| {entry['what']} | {entry['anchors']:,} | {' | '.join(figures)} | {right} |")
    return "\n".join(lines)


def coupling(head: Path, args, held: dict) -> dict:
    """Tokens per round at temperature 1 with the head's candidates weighed by the target's own noise, and without."""
    settings = (args.heldout / "texts", args.tokens, (4, 8, 16, 64), (1.0,))
    result = {"coupled": evaluate(head, args.target, held, *settings)["mean"]}
    with patch("jetspec_triton.sequence.gumbel", lambda seed, position, ids: np.zeros(len(ids))):
        result["uncoupled"] = evaluate(head, args.target, held, *settings)["mean"]
    return result


def report(results: dict) -> str:
    """`benchmarks/ablations.md`."""
    lines = [
        "# Ablations of the draft head",
        "",
        f"Every head below was trained from scratch on the same text for {results['minutes']:g} minutes of one core's time (the shipped head had",
        f"far more), then measured greedy on {results['prompts_per_set']} held-out prompts a set, {results['max_tokens']} tokens each: tokens per round, mean of HumanEval,",
        "MT-Bench and GSM8K, the head alone at a chain and at trees of 8, 16 and 64 nodes, and with the look-up as served at 16. A single run",
        "each: differences of a few hundredths are noise. Made by `benchmarks/ablations.py`, numbers in `benchmarks/results/ablations.json`.",
        "",
        table(results),
    ]
    if missing := [what for name, (what, _) in VARIANTS.items() if name not in results["variants"]]:
        lines += ["", f"Not measured yet: {'; '.join(missing)}."]
    if "coupling" in results:
        lines += [
            "",
            "## Temperature 1: candidates weighed by the noise that the target will draw with (shipped head)",
            "",
        ]
        lines += [
            "| nodes | as served, coupled | uncoupled | head alone, coupled | uncoupled |",
            "|---|---|---|---|---|",
        ]
        coupled, plain = results["coupling"]["coupled"], results["coupling"]["uncoupled"]
        for nodes in coupled["as_served"]:
            figures = (of[mode][nodes] for mode in ("as_served", "head_alone") for of in (coupled, plain))
            lines.append(f"| {nodes} | " + " | ".join(f"{value:.2f}" for value in figures) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=ROOT / "models" / "smollm2-135m-instruct")
    parser.add_argument("--data", type=Path, required=True, help="folder of captured shards")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "train" / "ablations")
    parser.add_argument("--heldout", type=Path, default=ROOT / ".cache" / "train" / "heldout")
    parser.add_argument("--minutes", type=float, default=3.0, help="of processor time, each variant")
    parser.add_argument("--prompts", type=int, default=7, help="held-out prompts a set")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "ablations.json")
    parser.add_argument("--coupling", type=Path, help="a head whose seed coupling at temperature 1 is measured too")
    parser.add_argument("--report", type=Path, default=ROOT / "benchmarks" / "ablations.md")
    args = parser.parse_args()
    held = {name: spread(load_prompts(name, args.heldout), args.prompts) for name in SETS}
    results = json.loads(args.out.read_text()) if args.out.exists() else {"variants": {}}
    results |= {"minutes": args.minutes, "prompts_per_set": args.prompts, "max_tokens": args.tokens}
    for name in args.variants:
        if name not in results["variants"]:
            results["variants"][name] = run(name, args, held)
            args.out.write_text(json.dumps(results, indent=1) + "\n")
    if args.coupling:
        results["coupling"] = coupling(args.coupling, args, held)
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    text = report(results)
    print(text)
    args.report.write_text(text)


if __name__ == "__main__":
    main()
