"""What a checkpoint directory says: the configuration of a target and of a draft head, in the Hugging Face layout."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

MODEL_TYPES = ("llama", "qwen3")
MOST = 1 << 31  # of any size or id
MOST_LAYERS, MOST_DEPTH = 1024, 64
_KINDS = {bool: "true or false", dict: "an object", list: "a list"}


@dataclass(frozen=True)
class TargetConfig:
    """A dense decoder-only target, Llama family or Qwen3. Sizes are in elements, `rope_theta` is the RoPE base.

    `eos_token_ids` are those of `config.json` and `generation_config.json` together.
    """

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

    @property
    def qk_norm(self) -> bool:
        """Whether every head's query and key pass an RMSNorm before RoPE."""
        return self.model_type == "qwen3"

    @classmethod
    def load(cls, directory: str | Path) -> TargetConfig:
        """Read `directory/config.json`. Raises `ConfigError` for what would be computed wrongly here."""
        raw = _read_config(directory)
        model_type = raw.get("model_type")
        if model_type not in MODEL_TYPES:
            raise ConfigError(
                f"{directory}: model_type is {model_type!r}, supported are {', '.join(MODEL_TYPES)}; "
                "point at a checkpoint of one of these"
            )
        return cls(
            model_type=model_type,
            **_sizes(directory, raw),
            tie_word_embeddings=_stated(directory, raw, "tie_word_embeddings", bool, False),
            max_position_embeddings=_size(directory, raw, "max_position_embeddings"),
            eos_token_ids=_eos_ids(directory, raw),
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
        nested = _nested(raw)
        _require_causal(directory, nested)
        places = {**{f"{part}.": values for part, values in nested.items()}, "": raw}

        def stated(name: str, default=None):
            found = {f"{place}{name}": values[name] for place, values in places.items() if values.get(name) is not None}
            if any(value != next(iter(found.values())) for value in found.values()):
                raise ConfigError(f"{directory}: config.json contradicts itself, {found}; correct it")
            return next(iter(found.values()), default)

        def required(name: str):
            if (value := stated(name)) is None:
                raise ConfigError(f"{directory}: {name} is missing in config.json; the head cannot be run without it")
            return value

        sizes = _sizes(directory, raw)
        layer_ids = required("target_layer_ids")
        if not (isinstance(layer_ids, list) and layer_ids):
            raise ConfigError(
                f"{directory}: target_layer_ids is {layer_ids!r}; the head is fed from a list of at least one"
            )
        for layer in layer_ids:
            whole(directory, "target_layer_ids", layer, 0, MOST_LAYERS)
        feature_size = stated("target_hidden_size", sizes["hidden_size"])
        if feature_size != sizes["hidden_size"]:
            raise ConfigError(
                f"{directory}: target_hidden_size is {feature_size}, the head's hidden_size is {sizes['hidden_size']}; "
                "they must be equal, the head shares the target's embedding"
            )
        return cls(
            **sizes,
            block_size=whole(directory, "block_size", required("block_size"), 2, MOST_DEPTH + 1),
            target_layer_ids=tuple(layer_ids),
            num_target_layers=whole(directory, "num_target_layers", required("num_target_layers"), 1, MOST_LAYERS),
            mask_token_id=whole(directory, "mask_token_id", required("mask_token_id"), 0),
            draft_vocab_size=whole(directory, "draft_vocab_size", stated("draft_vocab_size", 0), 0),
            parent_size=whole(directory, "parent_size", stated("parent_size", 0), 0),
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


def _nested(raw: dict) -> dict[str, dict]:
    """The parts of a head's configuration beside its root, those that are there."""
    return {part: raw[part] for part in ("dflash_config", "jetspec_config") if isinstance(raw.get(part), dict)}


def _require_causal(directory: str | Path, nested: dict[str, dict]) -> None:
    """`causal_head` or `causal` in either part says it, and so does having a `jetspec_config`; none may deny it."""
    found = {
        f"{part}.{key}": values[key]
        for part, values in nested.items()
        for key in ("causal_head", "causal")
        if key in values
    }
    if "jetspec_config" in nested:
        found["jetspec_config"] = True
    if not found or not all(value is True for value in found.values()):
        raise ConfigError(
            f"{directory}: cannot tell that the head's mask is causal ({found}); a head with another mask loses "
            "acceptance silently. Set dflash_config.causal_head to true if the head was trained causally"
        )


# What a decoder's configuration may state, and the only value that is computed here.
_SERVED = {
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}


def _sizes(directory: str | Path, raw: dict) -> dict:
    """The fields that every decoder's configuration has. Refuses what the graphs do not compute."""
    for name in ("rope_scaling", "rope_parameters"):
        scaling = _stated(directory, raw, name, dict, {})
        if scaling.get("rope_type", scaling.get("type")) not in (None, "default"):
            raise ConfigError(f"{directory}: {name} {scaling} is not supported; use a checkpoint without it")
    for name, served in _SERVED.items():
        if raw.get(name, served) not in (served, None):
            raise ConfigError(f"{directory}: {name} is {raw[name]!r}, supported is {served!r}; use another checkpoint")
    if other := sorted(set(map(str, _stated(directory, raw, "layer_types", list, []))) - {"full_attention"}):
        raise ConfigError(
            f"{directory}: layer_types has {', '.join(other)}, supported is full_attention; use another checkpoint"
        )
    heads, rope = _size(directory, raw, "num_attention_heads"), _stated(directory, raw, "rope_parameters", dict, {})
    if raw.get("model_type") == "qwen3":  # whose defaults do not follow from the other sizes
        kv_heads, head_dim = (_size(directory, raw, name) for name in ("num_key_value_heads", "head_dim"))
    else:
        given = {name: value for name, value in raw.items() if value is not None}
        usual = {"num_key_value_heads": heads, "head_dim": _size(directory, raw, "hidden_size") // heads}
        kv_heads, head_dim = (_size(directory, usual | given, name) for name in usual)
    if heads % kv_heads:
        raise ConfigError(
            f"{directory}: {heads} query heads cannot share {kv_heads} key heads evenly; use another checkpoint"
        )
    theta = rope.get("rope_theta") if raw.get("rope_theta") is None else raw["rope_theta"]
    return {
        "hidden_size": _size(directory, raw, "hidden_size"),
        "intermediate_size": _size(directory, raw, "intermediate_size"),
        "num_layers": _size(directory, raw, "num_hidden_layers", MOST_LAYERS),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": _size(directory, raw, "vocab_size"),
        "rms_norm_eps": _positive(directory, "rms_norm_eps", _required(directory, raw, "rms_norm_eps")),
        "rope_theta": _positive(directory, "rope_theta", 10000.0 if theta is None else theta),
    }


def whole(directory: str | Path, name: str, value: object, low: int, high: int = MOST) -> int:
    """`value`. Raises `ConfigError` unless it is a whole number in that range."""
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{directory}: {name} is {value!r}, valid is a whole number from {low} to {high}; correct it")
    return value


def _size(directory: str | Path, raw: dict, name: str, high: int = MOST) -> int:
    return whole(directory, name, _required(directory, raw, name), 1, high)


def _positive(directory: str | Path, name: str, value: object) -> float:
    if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{directory}: {name} is {value!r}, valid is a number above 0; correct it")
    return float(value)


def _stated(directory: str | Path, raw: dict, name: str, kind: type, default):
    """A field of one JSON type that may be missing or null."""
    if (value := raw.get(name)) is None:
        return default
    if not isinstance(value, kind):
        raise ConfigError(f"{directory}: {name} is {value!r}, valid is {_KINDS[kind]} or none; correct it")
    return value


def _required(directory: str | Path, raw: dict, name: str):
    if raw.get(name) is None:
        raise ConfigError(f"{directory}: {name} is missing in config.json; expected a complete Hugging Face checkpoint")
    return raw[name]


def _eos_ids(directory: str | Path, raw: dict) -> tuple[int, ...]:
    generation = Path(directory) / "generation_config.json"
    stated = [raw, read_json(generation)] if generation.is_file() else [raw]
    ids: dict[int, None] = {}
    for values in stated:
        eos = values.get("eos_token_id")
        for one in eos if isinstance(eos, list) else [] if eos is None else [eos]:
            ids[whole(directory, "eos_token_id", one, 0)] = None
    return tuple(ids)


def _read_config(directory: str | Path) -> dict:
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; expected a Hugging Face checkpoint directory")
    return read_json(path)


def read_json(path: Path) -> dict:
    """Raises `ConfigError` when the file holds something else, as after a download that broke off."""
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}); download it again") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a JSON {type(value).__name__}, expected an object; download it again")
    return value
