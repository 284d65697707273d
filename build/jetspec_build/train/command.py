"""`jetspec train` and `jetspec eval-head`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

CURVE_PROMPTS = 4  # a set, for the curve while training
SMALL_TARGET = 100_000_000  # bytes of weights; below, a few minutes of training are enough


def add_commands(commands, cache: Path) -> None:
    """cache: default folder of everything that can be made again."""
    evaluate = commands.add_parser("eval-head", help="measure a draft head on held-out prompts, without a server")
    evaluate.add_argument("--target", type=Path, required=True, help="Hugging Face checkpoint directory")
    evaluate.add_argument("--head", type=Path, required=True, help="draft head directory")
    evaluate.add_argument("--json", type=Path, help="where to write the whole result")
    evaluate.add_argument("--plots", type=Path, help="folder for plots (needs the extra 'plots')")
    evaluate.add_argument("--budgets", type=int, nargs="+", default=(4, 8, 16, 32, 64, 256), help="nodes with the root")
    evaluate.add_argument("--temperatures", type=float, nargs="+", default=(0.0, 1.0))
    evaluate.add_argument("--depth", type=int, help="tokens the head proposes (default: all it was trained for)")
    _add_held_out(evaluate, cache)
    evaluate.set_defaults(run=_run(_evaluate))
    train = commands.add_parser("train", help="train a draft head for a target: text, training, evaluation, model card")
    train.add_argument("--target", type=Path, required=True, help="Hugging Face checkpoint directory")
    train.add_argument("--out", type=Path, required=True, help="folder of the new head")
    train.add_argument("--work", type=Path, default=cache / "runs", help="folder of the text and the training's state")
    train.add_argument("--prompts", type=Path, help='your own prompts: JSON lines of {"prompt": ...}')
    train.add_argument("--tokens", type=int, help="tokens of training text (default: by the target's size)")
    train.add_argument("--minutes", type=float, help="minutes of training (default: by the target's size)")
    train.add_argument("--batch", type=int, default=96, help="conversations written at once")
    train.add_argument("--device", default="cpu", help="where torch runs: cpu or cuda")
    train.add_argument("--layers", type=int, nargs="+", help="target layers the head reads (default: five, spread)")
    train.add_argument("--num-layers", type=int, default=1, help="layers of the head")
    train.add_argument("--block-size", type=int, default=8, help="depth of a draft plus one")
    train.add_argument("--draft-vocab", type=int, default=16_384, help="most tokens the head can propose")
    train.add_argument("--start-from", type=Path, help="a head whose weights to start from")
    _add_held_out(train, cache, "eval-")
    train.set_defaults(run=_run(_train))


def _add_held_out(parser: argparse.ArgumentParser, cache: Path, prefix: str = "") -> None:
    add = parser.add_argument
    add(f"--{prefix}prompts", dest="eval_prompts", type=int, default=20, help="held-out prompts a set", metavar="N")
    add(f"--{prefix}tokens", dest="eval_tokens", type=int, default=128, help="most tokens of an answer", metavar="N")
    parser.add_argument("--heldout", type=Path, default=cache / "heldout", help="folder of the held-out sets and texts")


def _run(command):
    def run(args) -> int:
        from jetspec_triton.errors import JetSpecError

        try:
            return command(args)
        except (JetSpecError, OSError, ValueError, ModuleNotFoundError) as error:
            print(f"jetspec {args.command}: {error}", file=sys.stderr)
            return 1

    return run


def _evaluate(args) -> int:
    from jetspec_triton.checkpoint import DraftConfig
    from jetspec_triton.errors import ConfigError

    from .report import plot_evaluation, table

    head = DraftConfig.load(args.head)
    _in_range(("--depth", args.depth, 1, head.depth))
    _in_range(*(("--budgets", budget, 2, 4096) for budget in args.budgets))
    _in_range(*(("--temperatures", temperature, 0, 100) for temperature in args.temperatures))
    _in_range(("--prompts", args.eval_prompts, 1, 1000), ("--tokens", args.eval_tokens, 2, 100_000))
    if args.json and not args.json.parent.is_dir():
        raise ConfigError(f"{args.json.parent} is no folder, --json needs one that is there; make it")
    options = {"budgets": args.budgets, "temperatures": args.temperatures, "depth": args.depth}
    result = _result(args, args.head, **options)
    print(table(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plots:
        print("\n".join(f"wrote {path}" for path in plot_evaluation(result, args.plots)))
    return 0


def _in_range(*values: tuple[str, float | None, float, float]) -> None:
    """Raises `ConfigError` for the first flag whose value is neither left out nor in its range."""
    from jetspec_triton.errors import ConfigError

    for flag, value, low, high in values:
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{flag} is {value}, valid is {low} to {high}; give a value in that range")


def _require_device(name: str) -> None:
    import torch
    from jetspec_triton.errors import ConfigError

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(
            f"--device is {name}, torch {torch.__version__} has none ({first}); use cpu or cuda"
        ) from None


def _result(args, head: Path, **options) -> dict:
    from .evaluate import evaluate

    return evaluate(head, args.target, _sets(args), args.heldout / "texts", args.eval_tokens, **options)


def _sets(args) -> dict[str, list[str]]:
    from .prompt_sets import SETS, load_prompts, spread

    return {name: spread(load_prompts(name, args.heldout), args.eval_prompts) for name in SETS}


def _train(args) -> int:
    from jetspec_triton.checkpoint import TargetConfig

    from .card import write_card
    from .hashes import checkpoint_hash
    from .report import plot_evaluation, plot_training, table

    small = sum(file.stat().st_size for file in args.target.glob("*.safetensors")) < SMALL_TARGET
    tokens = args.tokens or (60_000 if small else 400_000)
    minutes = args.minutes or (3.0 if small else 20.0)
    config, target_hash = TargetConfig.load(args.target), checkpoint_hash(args.target)
    layers = args.layers or spread_layers(config.num_layers)
    _in_range(*(("--layers", layer, 0, config.num_layers - 1) for layer in layers))
    _in_range(("--tokens", args.tokens, 1, 10**9), ("--minutes", args.minutes, 0, 100_000))
    _in_range(("--batch", args.batch, 1, 4096), ("--num-layers", args.num_layers, 1, 64))
    _in_range(("--block-size", args.block_size, 2, 65), ("--draft-vocab", args.draft_vocab, 2, 10**9))
    _in_range(("--eval-prompts", args.eval_prompts, 1, 1000), ("--eval-tokens", args.eval_tokens, 2, 100_000))
    _require_device(args.device)
    prompts = _prompts(args, target_hash)
    run = args.work / f"{target_hash[:12]}-{prompts.digest[:12]}-{'.'.join(map(str, layers))}"
    _write_text(args, prompts, run, layers, target_hash, tokens)
    state = args.work / f"{args.out.name}.state"
    _train_head(args, config, prompts, run, layers, state, minutes)
    log = json.loads(state.with_suffix(".json").read_text())
    result = _result(args, args.out)
    print(table(result))
    (args.out / "evaluation.json").write_text(json.dumps(result, indent=1) + "\n")
    training = {
        "tokens": log["tokens"],
        "conversations": log["conversations"],
        "minutes": log["log"][-1]["seconds"] / 60,
        "prompts": args.prompts and args.prompts.name,
        "command": shlex.join(["jetspec", *sys.argv[1:]]),
    }
    print(f"wrote {write_card(args.out, result, training)}")
    try:
        plot_evaluation(result, args.out / "plots")
        plot_training(log["log"], args.out / "plots")
    except ModuleNotFoundError:
        print("no plots: matplotlib is not installed (extra 'plots')", file=sys.stderr)
    return 0


def spread_layers(count: int) -> list[int]:
    """Five target layers from the second to the third last, as published heads have them; all of a shallow target's."""
    if count <= 5:
        return list(range(count))
    return [int(1 + i * (count - 4) / 4 + 0.5) for i in range(5)]


def _prompts(args, target_hash: str):
    import hashlib

    from .prompt_file import PromptFile, make_prompts

    own = args.prompts.read_bytes() if args.prompts else b"mixture"
    path = args.work / f"prompts-{target_hash[:12]}-{hashlib.sha256(own).hexdigest()[:12]}.npz"
    if not path.exists():
        print("encoding prompts ...", flush=True)
        make_prompts(args.target, args.prompts, heldout=args.heldout).save(path)
    return PromptFile.load(path)


def _write_text(args, prompts, run: Path, layers: list[int], target_hash: str, tokens: int) -> None:
    from jetspec_triton.modules.llama import Llama

    from .capture import TOP
    from .corpus import describe
    from .self_generate import generate

    print(f"writing {tokens} tokens with the target; what is in {run} is kept ...", flush=True)
    model = Llama.load(args.target, tuple(layers))
    describe(run / "captured", layers, min(TOP, model.config.vocab_size), target_hash)
    generate(model, prompts, run / "text", run / "captured", tokens, args.batch, seed=1, device=args.device)


def _train_head(args, config, prompts, run: Path, layers: list[int], state: Path, minutes: float) -> None:
    from .corpus import Corpus
    from .evaluate import Curve
    from .train import main as train

    flags = {
        "--target": args.target,
        "--data": run / "captured",
        "--out": args.out,
        "--state": state,
        "--minutes": minutes,
        "--num-layers": args.num_layers,
        "--kv-heads": config.num_kv_heads,
        "--block-size": args.block_size,
        "--draft-vocab": min(args.draft_vocab, config.vocab_size),
        "--mask-token-id": unused_token(Corpus(run / "captured"), config.vocab_size),
        "--first-anchor": max(2, len(prompts.prefix)),
    }
    command = ["--layers", *map(str, layers), "--device", args.device]
    command += [str(part) for pair in flags.items() for part in pair]
    if args.start_from:
        command += ["--start-from", str(args.start_from)]
    print(f"training for {minutes:g} minutes ...", flush=True)
    sets = {name: some[:CURVE_PROMPTS] for name, some in _sets(args).items()}
    train(command, Curve(args.target, tuple(layers), sets, args.heldout / "texts"))


def unused_token(corpus, vocab_size: int) -> int:
    """The id that the corpus' text uses least, the lowest of them: the head reads it where tokens are not known yet."""
    import numpy as np

    return int(sum(np.bincount(shard["tokens"], minlength=vocab_size) for shard in corpus.shards).argmin())
