"""Training prompts as token ids in one file, so that the machine that generates needs no tokenizer."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from jetspec_triton.checkpoint import TargetConfig

from .prompt_sources import Prompt, mixture, overlapping, user_prompts


@dataclass
class PromptFile:
    """Encoded prompts and what the chat template writes around a user turn. All arrays are int32."""

    tokens: np.ndarray  # every prompt's ids, the template's `prefix` included
    lengths: np.ndarray  # of every prompt
    opening: np.ndarray  # 1 where the user turn is only begun
    prefix: np.ndarray  # ids before the user's text
    suffix: np.ndarray  # ids between the user's text and the answer; the first one ends the turn
    ends: np.ndarray  # ids that end an answer

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> tuple[list[int], bool]:
        """Ids of prompt `i` and whether its user turn is still open."""
        end = int(self._ends[i])
        return self.tokens[end - self.lengths[i] : end].tolist(), bool(self.opening[i])

    def __post_init__(self):
        self._ends = np.cumsum(self.lengths)

    @property
    def digest(self) -> str:
        """Hash of everything in the file."""
        return hashlib.sha256(b"".join(getattr(self, f.name).tobytes() for f in fields(self))).hexdigest()

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path) -> PromptFile:
        with np.load(path) as file:
            return cls(**{f.name: file[f.name] for f in fields(cls)})


def encode_prompts(target: Path, prompts: Sequence[Prompt], longest: int = 160) -> PromptFile:
    """Encode in the target's chat template; prompts above `longest` tokens, template included, are left out.

    A target without a template just continues every prompt. Raises ValueError when no prompt is short enough.
    """
    from jetspec_triton.chat import PromptEncoder

    config = TargetConfig.load(target)
    encoder = PromptEncoder(target, config.max_position_embeddings)
    chat = encoder.has_chat
    prefix, suffix = encoder.around() if chat else ([], [])
    rows, opening = [], []
    for prompt in prompts:
        ids = encoder.encode(prompt.text, chat)
        if prompt.opening:
            ids = ids[: len(ids) - len(suffix)]
        if 0 < len(ids) <= longest:
            rows.append(ids)
            opening.append(prompt.opening and chat)
    if not rows:
        raise ValueError(f"none of the {len(prompts)} prompts has at most {longest} tokens; raise the limit")
    arrays = (np.concatenate(rows), [len(row) for row in rows], opening, prefix, suffix, config.eos_token_ids)
    return PromptFile(*(np.asarray(array, np.int32) for array in arrays))


def make_prompts(
    target: Path, own: Path | None = None, count: int = 32_000, longest: int = 160, heldout: Path | None = None
) -> PromptFile:
    """The prompts of a user's `own` file, or the built-in mixture, encoded for `target`.

    heldout: folder of the held-out sets; prompts that overlap them are dropped.
    """
    from .prompt_sets import SETS, load_prompts

    prompts = user_prompts(own) if own else mixture(count, seed=1)
    if heldout:
        held_out = [text for name in SETS for text in load_prompts(name, heldout)]
        dropped = set(overlapping([prompt.text for prompt in prompts], held_out))
        prompts = [prompt for prompt in prompts if prompt.text not in dropped]
        print(f"{len(dropped)} prompts overlap a held-out set and are dropped")
    return encode_prompts(target, prompts, longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--own", type=Path, help='your own prompts: JSON lines of {"prompt": ...}')
    parser.add_argument("--count", type=int, default=32_000, help="prompts of the built-in mixture")
    parser.add_argument("--longest", type=int, default=160, help="most tokens of a prompt")
    parser.add_argument("--heldout", type=Path, help="folder of held-out sets; prompts that overlap them are dropped")
    args = parser.parse_args()
    made = make_prompts(args.target, args.own, args.count, args.longest, args.heldout)
    made.save(args.out)
    print(f"{args.out}: {len(made)} prompts, {len(made.tokens)} tokens, {made.digest[:16]}")


if __name__ == "__main__":
    main()
