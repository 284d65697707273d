"""The JetSpec draft head in plain PyTorch: the oracle of the head's graphs and the module that training trains.

Qwen3-style layers over one block `[anchor, MASK, ...]`. Every layer reads two kinds of key/value rows: the fused target
feature of each committed position (projected by the layer's own `k_proj`/`v_proj`) and the block's own rows, causally.
The embedding and the LM head are the target's.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from ..checkpoint import DraftConfig
from ..weights import head_shapes, load_weights
from .layers import MLP, Projections, RMSNorm, attend, rope_tables, rotate, split_heads


class DraftAttention(Projections):
    def __init__(self, config: DraftConfig):
        super().__init__(config)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """K (normed, rotated) and V of rows `(B, S, H)`, each `(B, n_kv, S, D)`."""
        k = self.k_norm(split_heads(self.k_proj(x), self.kv_heads))
        return rotate(k, *tables), split_heads(self.v_proj(x), self.kv_heads)

    def forward(self, x: Tensor, tables, context_k: Tensor, context_v: Tensor, mask: Tensor) -> Tensor:
        q = rotate(self.q_norm(split_heads(self.q_proj(x), self.heads)), *tables)
        k, v = self.keys_values(x, tables)
        out = attend(q, torch.cat((context_k, k), dim=2), torch.cat((context_v, v), dim=2), mask)
        return self.o_proj(out)


class DraftLayer(nn.Module):
    def __init__(self, config: DraftConfig):
        super().__init__()
        self.self_attn = DraftAttention(config)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, tables, context_k: Tensor, context_v: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), tables, context_k, context_v, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class ParentCorrection(nn.Module):
    """Conditions a depth's hidden state on the token drafted just above it.

    The block is drafted in one forward, so its rows know no drafted token and all branches of a depth would share their
    candidates. This adds `out(silu(hidden(x) + token(parent)))`: small enough to run for every (parent, child) pair.
    """

    def __init__(self, hidden_size: int, size: int):
        super().__init__()
        self.hidden = nn.Linear(hidden_size, size, bias=False)
        self.token = nn.Linear(hidden_size, size, bias=False)
        self.out = nn.Linear(size, hidden_size, bias=False)

    def forward(self, x: Tensor, parents: Tensor) -> Tensor:
        """x: hidden states `(..., H)`; parents: embeddings `(..., H)` of the tokens above. Returns `(..., H)`."""
        return x + self.out(F.silu(self.hidden(x) + self.token(parents)))


class DraftHead(nn.Module):
    """Weight names are those of published heads; `draft_vocab` (target ids the head can propose) and `parent` are ours."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.parent = ParentCorrection(config.hidden_size, config.parent_size) if config.parent_size else None
        vocab = torch.arange(config.draft_vocab_size or config.vocab_size, dtype=torch.int32)
        self.register_buffer("draft_vocab", vocab, persistent=config.draft_vocab_size > 0)

    @classmethod
    def load(cls, directory: str | Path) -> DraftHead:
        """Load a published-format directory in float32. Raises `ConfigError` naming a wrong weight."""
        head = cls(DraftConfig.load(directory))
        tensors = load_weights(directory, head_shapes(head.config))
        head.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
        return head.eval()

    def save(self, directory: str | Path, dtype: torch.dtype = torch.float16) -> None:
        """Write `config.json` and `model.safetensors` in the published format."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in self.state_dict().items()}
        save_file({n: t.contiguous() for n, t in tensors.items()}, directory / "model.safetensors")
        (directory / "config.json").write_text(json.dumps(self.config.to_json(), indent=2) + "\n")

    def fuse(self, features: Tensor) -> Tensor:
        """Target features `(..., n_layers * H)` -> fused features `(..., H)`."""
        return self.hidden_norm(self.fc(features))

    def forward(
        self, fused: Tensor, context_positions: Tensor, block: Tensor, block_positions: Tensor, mask: Tensor
    ) -> Tensor:
        """Hidden states of block rows; the target's LM head on row `d` gives depth `d`.

        fused: `(B, C, H)`, context_positions: `(B, C)`. block: embeddings `(B, S, H)` of the block rows (several blocks may
        stand side by side), block_positions: `(B, S)`. mask: `(B, S, C + S)` boolean. Returns `(B, S, H)`.
        """
        dim, theta = self.config.head_dim, self.config.rope_theta
        context_tables = rope_tables(context_positions, dim, theta)
        tables = rope_tables(block_positions, dim, theta)
        x = block
        for layer in self.layers:
            context_k, context_v = layer.self_attn.keys_values(fused, context_tables)
            x = layer(x, tables, context_k, context_v, mask)
        return self.norm(x)

    def candidates(self, hidden: Tensor, embedding: Tensor, lm_head: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The likeliest tokens of every depth, and how likely each is under each candidate of the depth above.

        hidden: `(N, depth, H)`, rows of `forward` without the anchor's. embedding: the target's `(V, H)`; lm_head: its rows
        of the draft vocabulary. Returns target ids `(N, depth, W)` and log-probabilities `(N, depth, W + 1, W)`, indexed by
        the candidate above, then the candidate; row `W` stands for any other token above, at the first depth all rows do.

        Only the `W` tokens of a depth are scored again below each candidate; the mass of all others is taken as it was.
        """
        logits = hidden @ lm_head.T
        values, index = logits.topk(min(width, lm_head.shape[0]))
        total = logits.logsumexp(-1, keepdim=True)
        ids = self.draft_vocab[index].long()
        marginal = (values - total)[:, :, None]
        log_probs = marginal.repeat(1, 1, ids.shape[2] + 1, 1)
        if self.parent is not None and hidden.shape[1] > 1:
            corrected = self.parent(hidden[:, 1:, None], embedding[ids[:, :-1]])
            scores = corrected @ lm_head[index[:, 1:]].transpose(-1, -2) - total[:, 1:, None]
            rest = -torch.expm1(marginal[:, 1:].logsumexp(-1, keepdim=True).clamp_max(-1e-6))
            log_probs[:, 1:, :-1] = scores - torch.log(scores.exp().sum(-1, keepdim=True) + rest)
        return ids, log_probs
