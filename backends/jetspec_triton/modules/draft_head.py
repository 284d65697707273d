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


class DraftHead(nn.Module):
    """Weight names are those of published heads; `draft_vocab` (target ids the head can propose) is our addition."""

    def __init__(self, config: DraftConfig):
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
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
