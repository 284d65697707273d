"""What a checkpoint directory says: the configuration of a target and of a draft head, and its tensors.

Both follow the Hugging Face layout: `config.json` beside one or more `*.safetensors` files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import ConfigError


@dataclass(frozen=True)
class TargetConfig:
    """A decoder-only target (Llama family). Sizes are in elements, `rope_theta` is the RoPE base."""

    model_type: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def load(cls, directory: str | Path) -> TargetConfig:
        """Read `directory/config.json`. Raises `ConfigError` for an architecture without a graph here."""
        raw = _read_config(directory)
        model_type = raw.get("model_type")
        if model_type != "llama":
            raise ConfigError(
                f"{directory}: model_type is {model_type!r}, supported is 'llama'; point at a Llama-family checkpoint"
            )
        for name in ("rope_scaling", "rope_parameters"):
            scaling = raw.get(name) or {}
            if scaling.get("rope_type", scaling.get("type")) not in (None, "default"):
                raise ConfigError(f"{directory}: {name} {scaling} is not supported; use a checkpoint without it")
        for name, served in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
            if raw.get(name, served) != served:
                raise ConfigError(
                    f"{directory}: {name} is {raw[name]!r}, supported is {served!r}; use another checkpoint"
                )
        eos = raw.get("eos_token_id")
        eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
        return cls(
            model_type=model_type,
            **_sizes(raw),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            max_position_embeddings=raw["max_position_embeddings"],
            eos_token_ids=eos_ids,
        )


@dataclass(frozen=True)
class DraftConfig:
    """A JetSpec draft head: Qwen3-style causal layers over one block, reading fused target features.

    `target_layer_ids` name the target layers whose outputs are fused; `block_size - 1` is the depth of a draft.
    `draft_vocab_size` is the length of the optional `draft_vocab` tensor (target ids the head can propose),
    0 when the head proposes over the whole vocabulary. `parent_size` is the width of the optional correction that
    conditions a depth's candidates on the token above them, 0 when the head has none.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    mask_token_id: int
    draft_vocab_size: int = 0
    parent_size: int = 0

    @property
    def depth(self) -> int:
        """Tokens proposed after the anchor."""
        return self.block_size - 1

    @classmethod
    def load(cls, directory: str | Path) -> DraftConfig:
        """Read a published-format head. Raises `ConfigError` when its mask is not plainly causal."""
        raw = _read_config(directory)
        nested = {**raw.get("dflash_config", {}), **raw.get("jetspec_config", {})}
        _require_causal(directory, raw)

        def required(name: str):
            value = nested.get(name, raw.get(name))
            if value is None:
                raise ConfigError(f"{directory}: {name} is missing in config.json; the head cannot be run without it")
            return value

        layer_ids = required("target_layer_ids")
        if not layer_ids:
            raise ConfigError(f"{directory}: target_layer_ids is empty; the head cannot be fed without it")
        feature_size = nested.get("target_hidden_size", raw["hidden_size"])
        if feature_size != raw["hidden_size"]:
            raise ConfigError(
                f"{directory}: target_hidden_size is {feature_size}, the head's hidden_size is {raw['hidden_size']}; "
                "they must be equal, the head shares the target's embedding"
            )
        return cls(
            **_sizes(raw),
            block_size=required("block_size"),
            target_layer_ids=tuple(layer_ids),
            num_target_layers=required("num_target_layers"),
            mask_token_id=required("mask_token_id"),
            draft_vocab_size=nested.get("draft_vocab_size", 0),
            parent_size=nested.get("parent_size", 0),
        )

    def to_json(self) -> dict:
        """The `config.json` that `load` reads back."""
        return {
            "architectures": ["JetSpecDraftModel"],
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "dflash_config": {
                "causal_head": True,
                "target_layer_ids": list(self.target_layer_ids),
                "mask_token_id": self.mask_token_id,
                "target_hidden_size": self.hidden_size,
                "draft_vocab_size": self.draft_vocab_size,
                "parent_size": self.parent_size,
            },
        }

    def check_target(self, target: TargetConfig) -> None:
        """Raise `ConfigError` unless this head was made for a target of this shape."""
        for name, mine, theirs in (
            ("hidden_size", self.hidden_size, target.hidden_size),
            ("vocab_size", self.vocab_size, target.vocab_size),
            ("num_target_layers", self.num_target_layers, target.num_layers),
        ):
            if mine != theirs:
                raise ConfigError(
                    f"the draft head's {name} is {mine}, the target's is {theirs}; use a head trained for this target"
                )
        if (
            not all(0 <= i < target.num_layers for i in self.target_layer_ids)
            or not 0 <= self.mask_token_id < target.vocab_size
        ):
            raise ConfigError(
                f"target_layer_ids {self.target_layer_ids} must be below {target.num_layers} and mask_token_id "
                f"{self.mask_token_id} below {target.vocab_size}; use a head trained for this target"
            )


def _require_causal(directory: str | Path, raw: dict) -> None:
    found = {
        f"{part}.{key}": raw[part][key]
        for part in ("dflash_config", "jetspec_config")
        for key in ("causal_head", "causal")
        if key in raw.get(part, {})
    }
    if "jetspec_config" in raw:
        found["jetspec_config"] = True
    if not found or not all(found.values()):
        raise ConfigError(
            f"{directory}: cannot tell that the head's mask is causal ({found}); a head with another mask loses "
            "acceptance silently. Set dflash_config.causal_head to true if the head was trained causally"
        )


def _sizes(raw: dict) -> dict:
    """The fields that every decoder's configuration has."""
    heads, rope = raw["num_attention_heads"], raw.get("rope_parameters") or {}
    return {
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "num_layers": raw["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": raw.get("head_dim") or raw["hidden_size"] // heads,
        "vocab_size": raw["vocab_size"],
        "rms_norm_eps": raw["rms_norm_eps"],
        "rope_theta": float(raw.get("rope_theta") or rope.get("rope_theta") or 10000.0),
    }


def _read_config(directory: str | Path) -> dict:
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; expected a Hugging Face checkpoint directory")
    return json.loads(path.read_text())


_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1"}


def load_tensors(directory: str | Path) -> dict[str, np.ndarray]:
    """All tensors of the directory's safetensors files: floats as float32 (bfloat16 too), integers as they are."""
    from safetensors import deserialize

    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{directory} holds no *.safetensors file; expected a Hugging Face checkpoint directory")
    tensors = {}
    for file in files:
        for name, stored in deserialize(file.read_bytes()):
            tensors[name] = _to_numpy(name, stored)
    return tensors


def _to_numpy(name: str, stored: dict) -> np.ndarray:
    if stored["dtype"] == "BF16":  # the upper half of a float32; NumPy has no such type
        array = (np.frombuffer(stored["data"], "<u2").astype(np.uint32) << 16).view(np.float32)
    elif stored["dtype"] in _DTYPES:
        array = np.frombuffer(stored["data"], _DTYPES[stored["dtype"]])
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
    else:
        raise ConfigError(
            f"tensor {name} is {stored['dtype']}, supported are BF16 and {', '.join(_DTYPES)}; convert it"
        )
    return array.reshape(stored["shape"]).copy() if not array.flags.writeable else array.reshape(stored["shape"])
