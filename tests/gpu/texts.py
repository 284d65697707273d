"""Prompts for the demo model and what a step says after them."""

from __future__ import annotations

from pathlib import Path

from jetspec_triton.loop import DecodingLoop
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import Step
from tokenizers import Tokenizer

from ..unit.tiny import run

PROMPTS = (
    "Write a short poem about the sea.",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "A train travels 60 km in 45 minutes. How fast is it in km/h? Think step by step.",
    "List the first five prime numbers:",
)
TOKENS = 48
MODES = (Sampling(), Sampling(0.8, seed=5), Sampling(1.0, 40, 0.9, 2**63 + 1))


def texts(step: Step, model: Path, vocab: int, mode: Sampling, speculate: bool) -> list[list[int]]:
    """Ids after every prompt; all prompts run at once."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    prompts = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    return run(DecodingLoop(step, tokenizer, vocab), prompts, TOKENS, mode, speculate=speculate)


def shared_prefix(a: list[list[int]], b: list[list[int]]) -> float:
    """Share of the tokens before the first difference of each text."""
    same = sum(next((i for i, (x, y) in enumerate(zip(s, t)) if x != y), min(len(s), len(t))) for s, t in zip(a, b))
    return same / sum(max(len(s), len(t)) for s, t in zip(a, b))
