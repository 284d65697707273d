"""A model card for a trained head: what it is, what it was trained on, what it gives."""

from __future__ import annotations

from pathlib import Path

from .report import table

DATA = """\
- user turns that the target completed by itself from a few words (no third-party text);
- signatures and docstrings of Python's standard library, and some of its functions (PSF licence);
- arithmetic, algebra and word puzzles generated with reasoning-gym (Apache-2.0)."""


def write_card(head: Path, result: dict, training: dict) -> Path:
    """Write `README.md` into the head's directory.

    result: of `evaluate`. training: `tokens` and `conversations` of the corpus, `minutes`, `prompts` (the user's own
    prompt file, or None for the built-in mixture), `command`.
    """
    source = DATA if training["prompts"] is None else f"- answers to the prompts of `{training['prompts']}`."
    prompts = ", ".join(f"{count} of {name}" for name, count in result["prompts_per_set"].items())
    text = f"""\
# JetSpec draft head for {result["target"]["name"]}

A causal parallel draft head (JetSpec, arXiv 2606.18394) of depth {result["depth"]}. It proposes, the target decides: output is
the target's own. Use it with the target whose weights and configuration have SHA-256 `{result["target"]["sha256"]}` only.

## Training data

{training["tokens"]} tokens in {training["conversations"]} conversations. Every answer was written by the target; the prompts are

{source}

No given prompt shares eight consecutive words with the held-out sets below. Trained for {training["minutes"]:.0f} minutes with

    {training["command"]}

## Tokens per round

On held-out prompts ({prompts}), at most {result["max_tokens"]} tokens each. {result["definition"]}

{table(result)}

The paper's head is of another target with far more training; its rows are for orientation. The head's probabilities are
off by {result["reliability"]["expected_error"]:.3f} on average at temperature {result["temperature"]:g}.
"""
    path = Path(head) / "README.md"
    path.write_text(text)
    return path
