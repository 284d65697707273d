"""Where the head starts: its draft vocabulary and its weights."""

from __future__ import annotations

import numpy as np
import torch
from jetspec_triton.checkpoint import DraftConfig
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import Llama
from torch import nn

from .corpus import Corpus

SPECIAL_AND_BYTES = 273  # a byte-level BPE lists its special tokens and the 256 bytes first


def choose_draft_vocab(corpus: Corpus, vocab_size: int, size: int) -> np.ndarray:
    """The `size` ids that the target most often (nearly) writes, sorted; every special and byte token in use is in."""
    mass = np.zeros(vocab_size)
    for shard in corpus.shards:
        mass += np.bincount(shard["tokens"], minlength=vocab_size)
        mass += np.bincount(shard["top_ids"].ravel(), shard["top_probs"].ravel().astype(np.float64), vocab_size)
    order = mass.copy()
    order[:SPECIAL_AND_BYTES][mass[:SPECIAL_AND_BYTES] > 0] = np.inf
    return np.sort(np.argsort(-order, kind="stable")[:size]).astype(np.int32)


def new_head(config: DraftConfig, target: Llama, draft_vocab: np.ndarray, init: str, seed: int) -> DraftHead:
    """A head that has seen nothing. `init` says what its layers start as: `random`, copies of the target's `last` ones,
    or copies `spread` evenly from the target's first to its last.

    The fused feature starts as the last captured layer alone, the final norm as the target's.
    """
    torch.manual_seed(seed)
    head = DraftHead(config)
    for module in head.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
    with torch.no_grad():
        head.draft_vocab.copy_(torch.from_numpy(draft_vocab))
        head.fc.weight.mul_(0.1)
        head.fc.weight[:, -config.hidden_size :] += torch.eye(config.hidden_size)
        head.norm.weight.copy_(target.norm.weight)
        if head.parent is not None:
            head.parent.out.weight.zero_()  # starts as no correction
        if init != "random":
            last = len(target.layers) - 1
            start = 0 if init == "spread" and config.num_layers > 1 else last - config.num_layers + 1
            sources = np.linspace(start, last, config.num_layers).round().astype(int)
            head.hidden_norm.weight.copy_(target.layers[last].input_layernorm.weight)
            for layer, source in zip(head.layers, sources):
                _copy_layer(layer, target.layers[source], config)
    return head


def _copy_layer(layer: nn.Module, source: nn.Module, config: DraftConfig) -> None:
    state = source.state_dict()
    for name in ("k_proj", "v_proj"):
        weight = state[f"self_attn.{name}.weight"].unflatten(0, (-1, config.head_dim))
        repeats = config.num_kv_heads // weight.shape[0]
        state[f"self_attn.{name}.weight"] = weight.repeat_interleave(repeats, dim=0).flatten(0, 1)
    layer.load_state_dict(state, strict=False)
