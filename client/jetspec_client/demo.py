"""`jetspec demo`: one command shows the real thing, plain and speculative, and checks that the ids are the same."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from .client import Client, Options
from .local_server import LocalServer
from .measure import Answer, answer

PROMPT = "Write a Python function that counts the vowels in a string, and explain how it works."
REPEATS = 3


def run_demo(root: Path, prompt: str, max_tokens: int) -> int:
    """Start the server, stream `prompt` plain and speculative, print the comparison. 0 when the ids are identical."""
    print("starting the Triton server (engines load and warm up) ...", flush=True)
    started = time.perf_counter()
    with LocalServer(root / "model_repository", root / "backends") as server:
        server.wait_ready()
        print(f"ready after {time.perf_counter() - started:.0f} s on {server.grpc_url}\n\n> {prompt}\n")
        client = Client(server.grpc_url)
        runs: dict[str, list[Answer]] = {"plain": [], "speculative": []}
        for repeat in range(REPEATS):  # interleaved: the machine's speed drifts
            for name, answers in runs.items():
                options = Options(max_tokens=max_tokens, chat=True, speculate=name == "speculative")
                if repeat == 0:
                    print(f"--- {name} ---")
                answers.append(answer(client, prompt, options, _show if repeat == 0 else lambda text: None))
                if repeat == 0:
                    print("\n")
        memory = server.resident_bytes()
    return _report(runs, memory)


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _report(runs: dict[str, list[Answer]], memory: int) -> int:
    speed = {name: statistics.median(a.tokens_per_s for a in answers) for name, answers in runs.items()}
    first = {name: statistics.median(a.ttft_s for a in answers) for name, answers in runs.items()}
    identical = len({tuple(a.ids) for answers in runs.values() for a in answers}) == 1
    print(f"server memory:     {memory / 1e9:.2f} GB, {len(runs['plain'][0].ids)} tokens, medians of {REPEATS}")
    for name, answers in runs.items():
        rounds = statistics.median(a.tokens_per_round for a in answers)
        print(
            f"{name + ':':18} {speed[name]:.1f} tokens/s, {rounds:.2f} tokens per round, first token {first[name] * 1e3:.0f} ms"
        )
    print(f"speed-up:          {speed['speculative'] / speed['plain']:.2f}x")
    print(f"identical:         {'yes' if identical else 'no'}")
    return 0 if identical else 1
