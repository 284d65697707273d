"""The command line: set up the demo model, serve it, generate from it, train a head for another."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path

from jetspec_build.train.command import add_commands as add_training

from .client import Client, Options, ServerUnavailable
from .demo import PROMPT, run_demo
from .load_tools import exec_tool
from .local_server import LocalServer, ServerError
from .measure import answer

ROOT = Path(__file__).resolve().parents[2]  # the checkout this package is installed from


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="jetspec", description="JetSpec speculative decoding on Triton Inference Server"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="import the demo model and build its engine (does nothing when done)")
    setup.set_defaults(run=_setup)
    _add_build(commands)
    add_training(commands, ROOT / ".cache" / "train")
    serve = commands.add_parser("serve", help="run the packaged Triton server in the foreground")
    serve.add_argument("--model-repository", type=Path, default=ROOT / "model_repository")
    serve.add_argument("--http-port", type=int, default=8000)
    serve.add_argument("--grpc-port", type=int, default=8001)
    serve.add_argument("--metrics-port", type=int, default=8002)
    serve.set_defaults(run=_serve)
    demo = commands.add_parser("demo", help="start a server, stream one prompt plain and speculative, compare")
    demo.add_argument("--prompt", default=PROMPT)
    demo.add_argument("--max-tokens", type=int, default=128)
    demo.set_defaults(run=lambda args: run_demo(ROOT, args.prompt, args.max_tokens))
    _add_generate(commands)
    tool = commands.add_parser("exec", help="run perf_analyzer or genai-perf with the libraries they need")
    tool.add_argument("tool", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    tool.set_defaults(run=_exec)
    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except ServerError as error:
        print(f"jetspec {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1


def _add_build(commands) -> None:
    build = commands.add_parser("build", help="build a ready model repository from a target and a draft head")
    build.add_argument("--target", type=Path, required=True, help="Hugging Face checkpoint directory")
    build.add_argument("--head", type=Path, required=True, help="draft head directory")
    build.add_argument("--out", type=Path, required=True, help="folder for engine/ and model_repository/")
    build.add_argument("--engine", default="openvino", help="openvino, tensorrt or tensorrt_llm")
    build.add_argument("--dry-run", action="store_true", help="print files, sizes and steps, write nothing")
    build.add_argument("--slots", type=int, help="sequences decoded at once (8; on a GPU 16)")
    build.add_argument("--context", type=int, help="tokens of prompt and answer together (2048)")
    build.add_argument("--rows-per-step", type=int, help="nodes of one step, all sequences together (64; on a GPU 256)")
    build.add_argument(
        "--draft-depth", type=int, help="tokens the head proposes; fewer cost less (3; on a GPU up to 15)"
    )
    build.add_argument("--float32", action="store_true", help="openvino: keep float32 weights instead of int8")
    build.add_argument("--dtype", help="on a GPU: float16 or bfloat16 (what the target was saved in, else bfloat16)")
    build.add_argument("--tensor-parallel", type=int, metavar="N", help="GPUs that share the target (1)")
    build.set_defaults(run=_build)


def _add_generate(commands) -> None:
    generate = commands.add_parser("generate", help="stream an answer to the terminal")
    generate.add_argument("prompt", help="the user's turn ('-' reads standard input)")
    generate.add_argument("--url", default="127.0.0.1:8001")
    generate.add_argument("--max-tokens", type=int, default=256)
    generate.add_argument("--temperature", type=float)
    generate.add_argument("--top-k", type=int)
    generate.add_argument("--top-p", type=float)
    generate.add_argument("--seed", type=int)
    generate.add_argument("--stop", action="append", default=[], help="stop string; may be given several times")
    generate.add_argument("--draft-budget", type=int, help="most drafted nodes a round; the default adapts to the load")
    generate.add_argument("--no-speculate", action="store_true", help="plain decoding, for comparison")
    generate.add_argument("--raw", action="store_true", help="send the prompt as it is, without the chat template")
    generate.add_argument("--stats", action="store_true", help="print speed, acceptance and a hash of the ids")
    generate.add_argument("--json", action="store_true", help="print one JSON object instead of the text")
    generate.set_defaults(run=_generate)


def _setup(args) -> int:
    from jetspec_build.demo_model import set_up

    set_up(ROOT)
    return 0


def _build(args) -> int:
    from jetspec_build.engines import Order
    from jetspec_build.plan import Plan
    from jetspec_triton.errors import ConfigError

    names = ("slots", "context", "rows_per_step", "draft_depth", "dtype", "tensor_parallel")
    given = {name: getattr(args, name) for name in names}
    if args.float32:
        given |= {"int8": False, "dtype": args.dtype or "float32"}
    try:
        order = Order.with_defaults(args.target.resolve(), args.head.resolve(), args.engine, **given)
        plan = Plan.make(order, args.out)
        print(plan.describe(), flush=True)
        if args.dry_run:
            return 0
        repository = plan.run(ROOT, lambda line: print(line, flush=True))
    except (ConfigError, OSError) as error:
        print(f"jetspec build: {error}", file=sys.stderr)
        return 1
    print(f"ready; serve it with: jetspec serve --model-repository {shlex.quote(str(repository))}")
    return 0


def _serve(args) -> int:
    ports = {"http_port": args.http_port, "grpc_port": args.grpc_port, "metrics_port": args.metrics_port}
    for stop_signal in (signal.SIGTERM, signal.SIGINT):  # a shell's & leaves SIGINT ignored
        signal.signal(stop_signal, signal.default_int_handler)
    server = LocalServer(args.model_repository, ROOT / "backends", **ports)
    try:
        print(f"starting; log: {server.log}", flush=True)
        server.wait_ready()
        print(
            f"ready: gRPC {server.grpc_url}, HTTP {server.http_port}, metrics {server.metrics_port}; Ctrl-C stops",
            flush=True,
        )
        print(f"jetspec serve: {server.watch()}; stopping, its log is {server.log}", file=sys.stderr)
        server.stop(drain=False)
        return 1
    except KeyboardInterrupt:
        print("stopping: running streams may finish; Ctrl-C again ends them", flush=True)
        return 0 if server.stop() == 0 else 1
    finally:
        server.stop(drain=False)


def _exec(args) -> int:
    exec_tool(args.tool)  # does not return
    return 1


def _generate(args) -> int:
    from tritonclient.utils import InferenceServerException

    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    options = Options(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        stop_words=tuple(args.stop),
        chat=not args.raw,
        speculate=not args.no_speculate,
        draft_budget=args.draft_budget,
    )
    try:
        got = answer(Client(args.url), prompt, options, (lambda text: None) if args.json else _show)
    except UnicodeEncodeError:
        print("jetspec generate: the prompt is not valid UTF-8; check the terminal's encoding", file=sys.stderr)
        return 2
    except (ServerUnavailable, InferenceServerException, TimeoutError, ValueError) as error:
        print(f"jetspec generate: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"text": got.text, "ids": got.ids, "seed": got.last.seed, "finish_reason": got.last.finish_reason,
                          "tokens_per_s": got.tokens_per_s, "ttft_s": got.ttft_s, "tokens_per_round": got.tokens_per_round,
                          **got.last.counts}))  # fmt: skip
    else:
        print()
    if args.stats:
        print(got.stats(), file=sys.stderr)
    return 0


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
