"""The draft head against a reference made of transformers' own Qwen3 layers, with the context as extra key/value rows."""

from __future__ import annotations

import pytest
import torch
from jetspec_triton.checkpoint import DraftConfig
from jetspec_triton.modules.draft_head import DraftHead
from jetspec_triton.modules.llama import causal_mask
from jetspec_triton.weights import load_tensors
from torch import Tensor
from transformers import Qwen3Config
from transformers.cache_utils import DynamicCache
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model, apply_rotary_pos_emb

from .built import VOCAB

FEATURES = 3  # captured layers


def head_of(heads: tuple[int, int], layers: int) -> DraftHead:
    torch.manual_seed(9)
    config = DraftConfig(48, 72, layers, *heads, 16, VOCAB, 1e-6, 1e6, 6, tuple(range(FEATURES)), FEATURES, 7)
    head = DraftHead(config).eval().requires_grad_(False)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.randn_like(parameter) * 1.5 / parameter.shape[1] ** 0.5)
        else:
            parameter.copy_(torch.rand_like(parameter) + 0.5)
    return head


def reference(directory, features: Tensor, block: Tensor) -> Tensor:
    """Hidden states `(B, S, H)` of the block, computed by transformers' modules and its cache alone."""
    ours = DraftConfig.load(directory)
    config = Qwen3Config(
        vocab_size=8,  # its own embedding is not used
        hidden_size=ours.hidden_size,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads,
        num_key_value_heads=ours.num_kv_heads,
        head_dim=ours.head_dim,
        rms_norm_eps=ours.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": ours.rope_theta},
        attn_implementation="eager",
    )
    model = Qwen3Model(config).eval().requires_grad_(False)
    tensors = {name: torch.from_numpy(array) for name, array in load_tensors(directory).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert (missing, sorted(unexpected)) == (["embed_tokens.weight"], ["fc.weight", "hidden_norm.weight"])
    hidden_norm = type(model.norm)(config.hidden_size, config.rms_norm_eps)
    hidden_norm.weight.data = tensors["hidden_norm.weight"]
    fused = hidden_norm(features @ tensors["fc.weight"].T)

    batch, context = fused.shape[:2]
    cos, sin = model.rotary_emb(fused, torch.arange(context)[None])
    cache = DynamicCache(config=config)
    for index, layer in enumerate(model.layers):
        attention = layer.self_attn
        shape = (batch, context, config.num_key_value_heads, config.head_dim)
        keys = attention.k_norm(attention.k_proj(fused).view(shape)).transpose(1, 2)
        values = attention.v_proj(fused).view(shape).transpose(1, 2)
        cache.update(apply_rotary_pos_emb(keys, keys, cos, sin)[1], values, index)
    return model(inputs_embeds=block, cache=cache, use_cache=True).last_hidden_state


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("heads, layers", [((4, 2), 1), ((4, 4), 2), ((6, 2), 5), ((4, 1), 2)], ids=str)
def test_a_head_equals_transformers_qwen3_layers(tmp_path, heads, layers, prefix):
    from safetensors.torch import load_file, save_file

    head_of(heads, layers).save(tmp_path, torch.bfloat16)
    file = tmp_path / "model.safetensors"
    save_file({prefix + name: tensor for name, tensor in load_file(file).items()}, file)
    head = DraftHead.load(tmp_path)
    torch.manual_seed(1)
    batch, context, size = 2, 13, head.config.block_size
    features = torch.randn(batch, context, FEATURES * head.config.hidden_size)
    block = torch.randn(batch, size, head.config.hidden_size)
    positions = torch.arange(context + size)[None].expand(batch, -1)
    mask = torch.cat((torch.ones(1, size, context, dtype=torch.bool), causal_mask(size)), dim=2).expand(batch, -1, -1)
    with torch.inference_mode():
        mine = head(head.fuse(features), positions[:, :context], block, positions[:, context:], mask)
        expected = reference(tmp_path, features, block)
    assert expected.std() > 0.3
    assert torch.allclose(mine, expected, atol=1e-4, rtol=1e-4)
