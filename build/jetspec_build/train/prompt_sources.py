"""Prompts to train on: the target's own user turns, Python functions of the standard library, generated problems.

None comes from a held-out set (`prompt_sets`): the standard library is under the PSF licence, reasoning-gym (Apache-2.0)
makes its problems from templates of its own, and the datasets of it that are named here follow no published benchmark.
"""

from __future__ import annotations

import ast
import json
import re
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .openers import GENERAL, WORD_PROBLEMS

MATHS = (
    "leg_counting", "time_intervals", "calendar_arithmetic", "coin_flip", "dice", "aiw", "simple_geometry", "chain_sum",
    "basic_arithmetic", "simple_equations", "fraction_simplification", "gcd", "lcm", "products", "prime_factorization",
)  # fmt: skip
PUZZLES = (
    "letter_counting", "spell_backward", "syllogism", "family_relationships", "number_sequence", "base_conversion",
    "count_primes", "count_bits", "sentence_reordering", "number_filtering", "word_sequence_reversal", "caesar_cipher",
    "number_format", "decimal_chain_sum",
)  # fmt: skip
SHARES = {"general": 0.35, "python": 0.35, "word_problems": 0.10, "maths": 0.10, "puzzles": 0.10}
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}
_NOT_LIBRARY.add("statistics.py")  # its examples hold the same number lists as a held-out prompt
_TERSE = re.compile(
    r"\s*\b(Give only|Respond|Answer in|Return only|Only reply|Reply only|Provide only|Do not)\b[^.]*\."
)


class Prompt(NamedTuple):
    """A user turn; an `opening` one is only begun, the target goes on with it."""

    text: str
    opening: bool = False


class Function(NamedTuple):
    stub: str  # signature and docstring
    source: str
    imports: tuple[str, ...]  # of its module


def library_functions() -> Iterator[Function]:
    """Every documented function of the running Python's standard library, in the order of its files."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if _NOT_LIBRARY & set(path.relative_to(root).parts):
            continue
        try:
            text = path.read_text()
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):
            continue
        lines = text.splitlines()
        imports = tuple(ast.unparse(node) for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or len(ast.get_docstring(node) or "") < 30:
                continue
            first, last = node.lineno - 1, node.body[0].end_lineno
            stub = textwrap.dedent("\n".join(lines[first:last]))
            yield Function(stub, textwrap.dedent("\n".join(lines[first : node.end_lineno])), imports)


def python_prompts(functions: Sequence[Function]) -> list[str]:
    """Raw stubs (also below imports of their module, and in words) and requests to explain or to test a function."""
    prompts = []
    for i, (stub, source, imports) in enumerate(functions):
        prompts.append(stub + "\n")
        if imports:
            prompts.append(f"{imports[i % len(imports)]}\n\n\n{stub}\n")
        asked = (
            f"Complete this Python function:\n\n{stub}",
            f"Complete the following function.\n\n```python\n{stub}\n```",
            f"Explain what this Python function does:\n\n```python\n{source}\n```",
            f"Write unit tests for this Python function:\n\n```python\n{stub}\n    ...\n```",
        )
        prompts.append(asked[i % len(asked)])
    return prompts


def generated_problems(datasets: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` questions, spread over reasoning-gym's `datasets`; a wish for a bare result is left out of them.

    Raises ModuleNotFoundError without the package.
    """
    try:
        from reasoning_gym import create_dataset
    except ModuleNotFoundError as error:
        message = f"{error}; install jetspec-triton[prompts], which has reasoning-gym, or give your own prompts"
        raise ModuleNotFoundError(message) from error

    each = -(-count // len(datasets))
    made = (create_dataset(name, seed=seed, size=each) for name in datasets)
    questions = [_TERSE.sub("", entry["question"]).strip() for dataset in made for entry in dataset]
    return [questions[i * len(questions) // count] for i in range(count)]


def mixture(count: int, seed: int) -> list[Prompt]:
    """About `count` prompts in the shares of `SHARES`, shuffled; a source that has fewer gives what it has."""
    rng = np.random.default_rng(seed)
    wanted = {name: round(share * count) for name, share in SHARES.items()}
    functions = python_prompts(list(library_functions()))
    texts = [functions[i] for i in rng.permutation(len(functions))[: wanted["python"]]]
    texts += generated_problems(MATHS, wanted["maths"], seed) + generated_problems(PUZZLES, wanted["puzzles"], seed)
    prompts = [Prompt(text) for text in dict.fromkeys(texts)]
    for openers, name in ((GENERAL, "general"), (WORD_PROBLEMS, "word_problems")):
        prompts += [Prompt(openers[i % len(openers)], opening=True) for i in range(wanted[name])]
    return [prompts[i] for i in rng.permutation(len(prompts))]


def user_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSON-lines file of `{"prompt": ...}`. Raises ValueError."""
    prompts = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        value = value.get("prompt") if isinstance(value, dict) else None
        if not isinstance(value, str):
            raise ValueError(f'{path}:{number}: expected {{"prompt": "text"}}, got {line[:60]!r}')
        prompts.append(Prompt(value))
    if not prompts:
        raise ValueError(f"{path} holds no prompt; write one JSON object with a prompt a line")
    return prompts


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def overlapping(prompts: Sequence[str], held_out: Sequence[str], words: int = 8) -> list[str]:
    """The prompts that share `words` consecutive words with a held-out prompt, or all of a shorter one's."""
    seen, short = set(), set()
    for text in held_out:
        found = _words(text)
        seen.update(tuple(found[i : i + words]) for i in range(len(found) - words + 1))
        if len(found) < words:
            short.add(tuple(found))

    def overlaps(text: str) -> bool:
        found = _words(text)
        grams = (tuple(found[i : i + words]) for i in range(len(found) - words + 1))
        return tuple(found) in short or any(gram in seen for gram in grams)

    return [text for text in prompts if overlaps(text)]
