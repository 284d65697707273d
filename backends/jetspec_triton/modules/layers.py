"""The layers a Llama-style target and the draft head share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Projections(nn.Module):
    """The four projections of grouped-query attention; `config` is a target's or a head's."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        hidden, dim = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(hidden, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, hidden, bias=False)


def rope_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of shape `(*positions.shape, head_dim / 2)`, float32."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim)
    angles = positions[..., None].float() * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split layout. `x` is `(B, heads, S, D)`, the tables are `(B, S, D / 2)`."""
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`(B, S, heads * D)` -> `(B, heads, S, D)`."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Grouped-query attention; `mask` is boolean `(B, S, K)`. Returns `(B, S, heads * D)`.

    The query heads of one key head become rows of one attention, so keys and values are never repeated.
    """
    batch, heads, length, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    q = q.reshape(batch, kv_heads, group * length, dim)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat(1, group, 1)[:, None])
    return out.view(batch, heads, length, dim).transpose(1, 2).flatten(2)
