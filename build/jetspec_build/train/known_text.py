"""The target's own text on given prompts, greedy or sampled as the product samples, with the features of every position."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jetspec_triton.modules.llama import KVCache, Llama, causal_mask
from jetspec_triton.sampling import Sampling, sample
from tqdm import tqdm


class KnownText(NamedTuple):
    tokens: np.ndarray  # (T,) prompt and answer
    prompt_length: int
    features: np.ndarray  # (T - 1, n_layers * H) float16; the last token has not been fed


@torch.inference_mode()
def known_texts(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    ends: Collection[int],
    samplings: Sequence[Sampling] | None = None,
) -> list[KnownText]:
    """Continue all prompts in one batch until one of `ends` or `new_tokens`; `samplings`, one a prompt, default to greedy."""
    samplings = samplings or [Sampling()] * len(prompts)
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    batch, longest = len(prompts), int(lengths.max())
    cache = KVCache.empty(model.config, batch, longest + new_tokens)
    features = torch.zeros(batch, longest + new_tokens, len(model.capture) * model.config.hidden_size).half()
    texts, hidden = [list(prompt) for prompt in prompts], []
    for i, prompt in enumerate(tqdm(prompts, "reading prompts", leave=False)):
        place = torch.arange(len(prompt))[None]
        row = KVCache(cache.k[:, i : i + 1], cache.v[:, i : i + 1])
        mask = place[:, None] <= place[..., None]
        output = model(torch.tensor(prompt)[None], place, mask, row, place)
        features[i, : len(prompt)] = output.features[0].half()
        hidden.append(output.hidden[0, -1])
    states = torch.stack(hidden)
    live = torch.arange(batch)
    for step in tqdm(range(new_tokens), "writing answers", leave=False):
        logits = model.logits(states).numpy()
        drawn = [sample(row, len(texts[i]), samplings[i]) for i, row in zip(live.tolist(), logits)]
        for i, token in zip(live.tolist(), drawn):
            texts[i].append(token)
        keep = torch.tensor([row for row, token in enumerate(drawn) if token not in ends], dtype=torch.long)
        if step == new_tokens - 1 or not len(keep):
            break
        fed = torch.tensor(drawn)
        if len(keep) < len(live):
            live, fed, cache = live[keep], fed[keep], KVCache(cache.k[:, keep], cache.v[:, keep])
        place = lengths[live][:, None] + step
        mask = torch.arange(int(place.max()) + 1) <= place[..., None]
        output = model(fed[:, None], place, mask, cache, place)
        features[live, place[:, 0]] = output.features[:, 0].half()
        states = output.hidden[:, 0]
    return [
        KnownText(np.asarray(text), len(prompt), features[i, : len(text) - 1].numpy())
        for i, (text, prompt) in enumerate(zip(texts, prompts))
    ]


class TextCache:
    """Known texts on disk, by what they depend on: target, prompt, length and sampling; the features by layers too."""

    def __init__(self, directory: Path, target: Path, target_hash: str, layers: tuple[int, ...]):
        self._directory, self._target, self._hash, self._layers = Path(directory), target, target_hash, layers
        self._loaded: Llama | None = None

    def get(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, ends: Collection[int], samplings: Sequence[Sampling]
    ) -> list[KnownText]:
        """The texts of all prompts; those that are not on disk yet are written in one batch."""
        paths = [self._path(prompt, new_tokens, sampling) for prompt, sampling in zip(prompts, samplings)]
        missing = [i for i, path in enumerate(paths) if not path.exists()]
        if missing:
            some = [prompts[i] for i in missing], new_tokens, ends, [samplings[i] for i in missing]
            for i, text in zip(missing, known_texts(self._model(), *some)):
                _save(self._features_path(paths[i]), text.features)
                _save(paths[i], text.tokens)
        return [self._read(path, len(prompt)) for path, prompt in zip(paths, prompts)]

    def _model(self) -> Llama:
        self._loaded = self._loaded or Llama.load(self._target, self._layers)
        return self._loaded

    def _path(self, prompt: Sequence[int], new_tokens: int, sampling: Sampling) -> Path:
        key = repr((self._hash, list(prompt), new_tokens, tuple(sampling)))
        return self._directory / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npy"

    def _features_path(self, path: Path) -> Path:
        return path.with_name(f"{path.stem}-{'.'.join(map(str, self._layers))}.npy")

    def _read(self, path: Path, prompt_length: int) -> KnownText:
        tokens, features = np.load(path), self._features_path(path)
        if not features.exists():  # the text is known from another head, which reads other layers
            _save(features, _features(self._model(), tokens))
        return KnownText(tokens, prompt_length, np.load(features))


@torch.inference_mode()
def _features(model: Llama, tokens: np.ndarray) -> np.ndarray:
    """`(T - 1, n_layers * H)` float16 of tokens `(T,)`."""
    place = torch.arange(len(tokens) - 1)[None]
    return model(torch.from_numpy(tokens[:-1])[None], place, causal_mask(place.shape[1])).features[0].half().numpy()


def _save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial.npy")
    np.save(partial, array)
    partial.rename(path)
