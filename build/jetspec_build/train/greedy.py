"""The target's own greedy text on given prompts, with the features of every position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jetspec_triton.modules.llama import KVCache, Llama


class GreedyText(NamedTuple):
    tokens: np.ndarray  # (T,) prompt and answer
    prompt_length: int
    features: np.ndarray  # (T - 1, n_layers * H) float16; the last token has not been fed


@torch.inference_mode()
def greedy_texts(model: Llama, prompts: Sequence[Sequence[int]], new_tokens: int, end: int) -> list[GreedyText]:
    """Continue all prompts in one batch until `end` or `new_tokens`."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    batch, longest = len(prompts), int(lengths.max())
    cache = KVCache.empty(model.config, batch, longest + new_tokens)
    features = torch.zeros(batch, longest + new_tokens, len(model.capture) * model.config.hidden_size).half()
    texts, hidden = [list(prompt) for prompt in prompts], []
    for i, prompt in enumerate(prompts):
        place = torch.arange(len(prompt))[None]
        row = KVCache(cache.k[:, i : i + 1], cache.v[:, i : i + 1])
        mask = place[:, None] <= place[..., None]
        output = model(torch.tensor(prompt)[None], place, mask, row, place)
        features[i, : len(prompt)] = output.features[0].half()
        hidden.append(output.hidden[0, -1])
    states = torch.stack(hidden)
    live = torch.arange(batch)
    for step in range(new_tokens):
        drawn = model.logits(states).argmax(-1)
        for i, token in zip(live.tolist(), drawn.tolist()):
            texts[i].append(token)
        keep = torch.nonzero(drawn != end)[:, 0]
        if step == new_tokens - 1 or not len(keep):
            break
        if len(keep) < len(live):
            live, drawn, cache = live[keep], drawn[keep], KVCache(cache.k[:, keep], cache.v[:, keep])
        place = lengths[live][:, None] + step
        mask = torch.arange(int(place.max()) + 1) <= place[..., None]
        output = model(drawn[:, None], place, mask, cache, place)
        features[live, place[:, 0]] = output.features[:, 0].half()
        states = output.hidden[:, 0]
    return [
        GreedyText(np.asarray(text), len(prompt), features[i, : len(text) - 1].numpy())
        for i, (text, prompt) in enumerate(zip(texts, prompts))
    ]
