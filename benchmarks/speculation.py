"""Speculative against plain decoding through gRPC on held-out prompts: the same ids, and how much faster.

Starts the real server with the default settings. Every prompt is answered plain and speculative in turn (interleaved, so
that drift of the machine's speed cancels), greedy and seeded, alone; then again while other streams run, for the ids.
Prints a table and writes JSON.

    .venv/bin/python benchmarks/speculation.py --out benchmarks/results/speculation.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from jetspec_build.train.prompt_sets import SETS, load_prompts, spread
from jetspec_client import Client, Options
from jetspec_client.local_server import LocalServer
from jetspec_client.measure import Answer, answer
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
MODES = {"greedy": {}, "seeded": {"temperature": 0.8, "seed": 7}}


def ask(client: Client, prompt: str, max_tokens: int, speculate: bool, mode: dict) -> Answer:
    return answer(client, prompt, Options(max_tokens=max_tokens, chat=True, speculate=speculate, **mode))


def alone(client: Client, prompts: list[tuple[str, str]], max_tokens: int) -> list[dict]:
    """One record a prompt and mode, plain and speculative back to back, the order alternating."""
    records = []
    turns = list(itertools.product(enumerate(prompts), MODES.items()))
    for (index, (name, prompt)), (mode, options) in tqdm(turns, desc="alone", unit="pair"):
        pair = {}
        for speculate in (False, True) if index % 2 else (True, False):
            pair[speculate] = ask(client, prompt, max_tokens, speculate, options)
        plain, drafted = pair[False], pair[True]
        records.append({
            "set": name, "prompt": index, "mode": mode, "same_ids": plain.ids == drafted.ids, "ids": plain.ids,
            "plain_tokens_per_s": plain.tokens_per_s, "speculative_tokens_per_s": drafted.tokens_per_s,
            "tokens_per_round": drafted.tokens_per_round, "plain_ttft_s": plain.ttft_s, "speculative_ttft_s": drafted.ttft_s,
        })  # fmt: skip
    return records


def in_company(
    client: Client, prompts: list[tuple[str, str]], records: list[dict], max_tokens: int, others: int
) -> list[bool]:
    """Whether a plain and a speculative answer, asked together beside `others - 1` more streams, have the ids they had alone."""
    ended = threading.Event()

    def keep_busy(which: int) -> None:
        for turn in itertools.count(which):
            if ended.is_set():
                return
            options = Options(max_tokens=64 + 16 * which, chat=True, temperature=1.0 if which % 2 else None)
            client.generate(prompts[turn % len(prompts)][1], options)

    threads = [threading.Thread(target=keep_busy, args=(i,)) for i in range(others - 1)]
    for thread in threads:
        thread.start()
    same = []
    with ThreadPoolExecutor(2) as pool:
        for record in tqdm(records, desc=f"beside {others} streams", unit="pair"):
            prompt, mode = prompts[record["prompt"]][1], MODES[record["mode"]]
            pair = [pool.submit(ask, client, prompt, max_tokens, speculate, mode) for speculate in (True, False)]
            same.append(all(asked.result().ids == record["ids"] for asked in pair))
    ended.set()
    for thread in threads:
        thread.join()
    return same


def summarise(records: list[dict]) -> dict:
    """Medians of the per-prompt ratio by set and mode, and the mean of the sets."""
    table: dict = {}
    for mode in MODES:
        rows = {}
        for name in SETS:
            chosen = [r for r in records if r["mode"] == mode and r["set"] == name]
            ratios = [r["speculative_tokens_per_s"] / r["plain_tokens_per_s"] for r in chosen]
            rows[name] = {
                "speed_up": statistics.median(ratios),
                "plain_tokens_per_s": statistics.median(r["plain_tokens_per_s"] for r in chosen),
                "speculative_tokens_per_s": statistics.median(r["speculative_tokens_per_s"] for r in chosen),
                "tokens_per_round": statistics.mean(r["tokens_per_round"] for r in chosen),
                "same_ids": f"{sum(r['same_ids'] for r in chosen)} of {len(chosen)}",
            }
        numbers = ("speed_up", "tokens_per_round", "plain_tokens_per_s", "speculative_tokens_per_s")
        rows["mean"] = {key: statistics.mean(row[key] for row in rows.values()) for key in numbers}
        table[mode] = rows
    return table


def machine() -> dict:
    cpu = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    flags = next(line for line in open("/proc/cpuinfo") if line.startswith("flags")).split()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "avx512_vnni": "avx512_vnni" in flags,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("openvino", "nvidia-pytriton", "tritonclient", "numpy")},
        "commit": commit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts-per-set", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--others", type=int, default=7, help="streams that run beside in the second part")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cache = ROOT / ".cache" / "train" / "heldout"
    prompts = [(name, prompt) for name in SETS for prompt in spread(load_prompts(name, cache), args.prompts_per_set)]
    with LocalServer(ROOT / "model_repository", ROOT / "backends") as server:
        server.wait_ready()
        client = Client(server.grpc_url)
        ask(client, prompts[0][1], args.max_tokens, True, {})  # the calibration starts from somewhere real
        records = alone(client, prompts, args.max_tokens)
        same = in_company(client, prompts, records, args.max_tokens, args.others) if args.others else []
        memory = server.resident_bytes()
    table = summarise(records)
    print(f"\n{'':22}{'plain tok/s':>12}{'spec. tok/s':>12}{'speed-up':>10}{'tokens/round':>14}{'same ids':>12}")
    for mode, rows in table.items():
        for name, row in rows.items():
            print(f"{mode + ' ' + name:22}{row['plain_tokens_per_s']:12.1f}{row['speculative_tokens_per_s']:12.1f}"
                  f"{row['speed_up']:10.2f}{row['tokens_per_round']:14.2f}{row.get('same_ids', ''):>12}")  # fmt: skip
    print(
        f"same ids beside {args.others} other streams: {sum(same)} of {len(same)}; server memory {memory / 1e9:.2f} GB"
    )
    if args.out:
        result = {
            "machine": machine(),
            "max_tokens": args.max_tokens,
            "table": table,
            "same_ids_in_company": f"{sum(same)} of {len(same)}",
            "server_memory_bytes": memory,
            "records": [{k: v for k, v in r.items() if k != "ids"} for r in records],
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
