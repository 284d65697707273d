"""The Llama-family or Qwen3 target in plain PyTorch: the oracle that every engine's graph is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..checkpoint import TargetConfig
from ..weights import TARGET_IGNORED, load_weights, target_shapes
from .layers import MLP, Projections, RMSNorm, attend, rope_tables, rotate, split_heads


class KVCache(NamedTuple):
    """Keys and values of every layer, `(L, B, n_kv, SM, D)` each, written in place by the forward."""

    k: Tensor
    v: Tensor

    @classmethod
    def empty(cls, config: TargetConfig, batch: int, length: int, dtype=torch.float32, device="cpu") -> KVCache:
        shape = (config.num_layers, batch, config.num_kv_heads, length, config.head_dim)
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))


class TargetOutput(NamedTuple):
    hidden: Tensor  # (B, S, H) after the final norm; `Llama.logits` maps it to the vocabulary
    features: Tensor  # (B, S, n_layers * H), outputs of the captured layers


class Attention(Projections):
    def __init__(self, config: TargetConfig):
        super().__init__(config)
        for name in ("q_norm", "k_norm"):
            setattr(self, name, RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity())

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache, write: Tensor | None) -> Tensor:
        q = rotate(self.q_norm(split_heads(self.q_proj(x), self.heads)), cos, sin)
        k = rotate(self.k_norm(split_heads(self.k_proj(x), self.kv_heads)), cos, sin)
        v = split_heads(self.v_proj(x), self.kv_heads)
        if cache is not None:
            rows = torch.arange(x.shape[0], device=x.device)[:, None]
            past_k, past_v = cache
            past_k[rows, :, write] = k.transpose(1, 2).to(past_k.dtype)
            past_v[rows, :, write] = v.transpose(1, 2).to(past_v.dtype)
            k, v = past_k[:, :, : mask.shape[-1]], past_v[:, :, : mask.shape[-1]]
        return self.o_proj(attend(q, k.to(q.dtype), v.to(q.dtype), mask))


class Layer(nn.Module):
    def __init__(self, config: TargetConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, *attention_args) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), *attention_args)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Weight names are those of the Hugging Face checkpoint without its `model.` prefix.

    Qwen3 is the same stack with a norm on each head's query and key.
    """

    def __init__(self, config: TargetConfig, capture: tuple[int, ...] = ()):
        super().__init__()
        self.config, self.capture = config, capture
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    @classmethod
    def load(cls, directory: str | Path, capture: tuple[int, ...] = ()) -> Llama:
        """Load a Hugging Face directory in float32, ready for inference. Raises `ConfigError` naming a wrong weight."""
        config = TargetConfig.load(directory)
        tensors = load_weights(directory, target_shapes(config), TARGET_IGNORED)
        with torch.device("meta"):
            model = cls(config, capture)
        weights = {name: torch.from_numpy(tensors[name]) for name in target_shapes(config)}
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["embed_tokens.weight"]
        model.load_state_dict(weights, assign=True)
        if config.tie_word_embeddings:
            model.lm_head.weight = model.embed_tokens.weight
        return model.eval().requires_grad_(False)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, cache: KVCache | None = None, write: Tensor | None = None
    ) -> TargetOutput:
        """One forward over `S` nodes of `B` sequences.

        ids, positions: `(B, S)` integers. mask: `(B, S, K)` boolean, True where a node sees a key. Without a cache
        the keys are the nodes themselves (`K == S`); with one, each node's K/V is first written at `write` `(B, S)`
        and the keys are the cache's first `K` rows.
        """
        x = self.embed_tokens(ids)
        cos, sin = rope_tables(positions, self.config.head_dim, self.config.rope_theta)
        captured = {}
        for i, layer in enumerate(self.layers):
            past = None if cache is None else (cache.k[i], cache.v[i])
            x = layer(x, cos, sin, mask, past, write)
            if i in self.capture:
                captured[i] = x
        features = torch.cat([captured[i] for i in self.capture], dim=-1) if captured else x.new_zeros(*x.shape[:2], 0)
        return TargetOutput(self.norm(x), features)

    def logits(self, hidden: Tensor) -> Tensor:
        """`(..., H)` -> `(..., V)`."""
        return self.lm_head(hidden)


def causal_mask(length: int, device="cpu") -> Tensor:
    """`(1, length, length)` boolean, lower triangular."""
    return torch.ones(1, length, length, dtype=torch.bool, device=device).tril()
