"""A small byte-level BPE tokenizer, as the demo model's is built, and the demo's own where it is at hand."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ["<|end|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("i", "n"), ("S", "T"), ("ST", "O"), ("ð", "Ł"), ("Ã", "¤"), ("â", "Ĥ")]


def byte_level(specials: list[str] = SPECIALS) -> Tokenizer:
    """Specials come first; then 256 byte tokens and a few merges, some of them of incomplete characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*specials, *alphabet, *(a + b for a, b in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in specials])
    return tokenizer


def demo_tokenizers() -> list[Path]:
    """`tokenizer.json` of every imported model and built engine of this checkout."""
    root = Path(__file__).parents[2]
    return sorted([*root.glob("models/*/tokenizer.json"), *root.glob("engines/*/tokenizer.json")])
