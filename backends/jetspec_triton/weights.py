"""A checkpoint's tensors, read one at a time, and which ones it must hold: names as published and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from .checkpoint import DraftConfig, TargetConfig, read_json
from .errors import ConfigError

INDEX = "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8")


class Tensors(Mapping[str, np.ndarray]):
    """A checkpoint's tensors by name, without the `model.` prefix; each is read when it is asked for and not kept."""

    def __init__(self, files: list[Path]):
        from safetensors import SafetensorError, safe_open

        self._files = {}
        for file in files:
            try:
                opened = safe_open(file, framework="np")
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{file} is no complete safetensors file ({error}); download it again") from None
            for stored in opened.keys():
                name = stored.removeprefix("model.")
                if name in self._files:
                    raise ConfigError(f"{file} holds {name} a second time; keep one copy of each tensor")
                self._files[name] = opened, stored

    def __getitem__(self, name: str) -> np.ndarray:
        """Floats as float32 (bfloat16 too), integers as they are."""
        opened, stored = self._files[name]
        dtype = opened.get_slice(stored).get_dtype()
        if dtype not in _DTYPES:
            raise ConfigError(f"tensor {name} is {dtype}, supported are {', '.join(_DTYPES)}; convert it")
        if dtype == "BF16":
            import ml_dtypes  # noqa: F401  teaches NumPy bfloat16
        array = opened.get_tensor(stored)
        return array if dtype.startswith(("I", "U")) else array.astype(np.float32, copy=False)

    def dtype(self, name: str) -> str:
        """As safetensors calls it, without reading the data."""
        opened, stored = self._files[name]
        return opened.get_slice(stored).get_dtype()

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the data."""
        opened, stored = self._files[name]
        return tuple(opened.get_slice(stored).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def load_tensors(directory: str | Path) -> Tensors:
    """The tensors of a Hugging Face directory, one file or shards with an index.

    Opening reads the files' headers. Peak memory of an access: the tensor as stored and its float32 form, for Qwen3-8B's
    embedding 1.2 + 2.5 GB; a caller that keeps all of them needs 4 bytes a weight.
    """
    return Tensors(checkpoint_files(directory))


def checkpoint_files(directory: str | Path) -> list[Path]:
    """The weight files of a directory. Raises `ConfigError` when there are none or one that the index names is missing."""
    directory = Path(directory)
    index = directory / INDEX
    if index.is_file():
        places = read_json(index).get("weight_map")
        if not (isinstance(places, dict) and places and all(isinstance(name, str) for name in places.values())):
            raise ConfigError(f"{index} has no weight_map from tensors to files; download it again")
        files = [directory / name for name in sorted(set(places.values()))]
        if missing := [file.name for file in files if not file.is_file()]:
            raise ConfigError(f"{index} names files that are not there: {', '.join(missing)}; download them")
        return files
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{directory} holds no *.safetensors file; expected a Hugging Face checkpoint directory")
    return files


TARGET_IGNORED = re.compile(r"lm_head\.weight|layers\.\d+\.self_attn\.rotary_emb\.inv_freq")  # a tied copy, a table


def target_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    shapes = {"embed_tokens.weight": (config.vocab_size, config.hidden_size), "norm.weight": (config.hidden_size,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes | _layer_shapes(config, config.qk_norm)


def head_shapes(config: DraftConfig) -> dict[str, tuple[int, ...]]:
    hidden = config.hidden_size
    shapes = {
        "fc.weight": (hidden, len(config.target_layer_ids) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    if config.draft_vocab_size:
        shapes["draft_vocab"] = (config.draft_vocab_size,)
    if config.parent_size:
        inner = config.parent_size
        shapes |= {"parent.hidden.weight": (inner, hidden), "parent.token.weight": (inner, hidden)}
        shapes["parent.out.weight"] = (hidden, inner)
    return shapes | _layer_shapes(config, qk_norm=True)


def load_weights(
    directory: str | Path, shapes: dict[str, tuple[int, ...]], ignored: re.Pattern | None = None
) -> Tensors:
    """The directory's tensors. Raises `ConfigError` unless they are those of `shapes`, beside what `ignored` matches."""
    tensors = load_tensors(directory)
    unknown = [name for name in tensors if name not in shapes and not (ignored and ignored.fullmatch(name))]
    wrong = [
        f"{name} is {tensors.shape(name)}, expected {shape}"
        for name, shape in shapes.items()
        if name in tensors and tensors.shape(name) != shape
    ]
    whole = [
        f"{name} is {tensors.dtype(name)}"
        for name in shapes
        if name in tensors and name != "draft_vocab" and not tensors.dtype(name).startswith(("F", "BF"))
    ]
    for told, names in (
        ("lacks", [name for name in shapes if name not in tensors]),
        ("holds unknown weights:", unknown),
        ("does not fit its config.json:", wrong),
        ("holds quantised weights:", whole),
    ):
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise ConfigError(
                f"{directory} {told} {', '.join(names[:5])}{more}; use a complete checkpoint of this kind"
            )
    return tensors


def _layer_shapes(config: TargetConfig | DraftConfig, qk_norm: bool) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    layer = {
        "self_attn.q_proj": (config.num_heads * dim, hidden),
        "self_attn.k_proj": (config.num_kv_heads * dim, hidden),
        "self_attn.v_proj": (config.num_kv_heads * dim, hidden),
        "self_attn.o_proj": (hidden, config.num_heads * dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if qk_norm:
        layer |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    return {f"layers.{i}.{name}.weight": shape for i in range(config.num_layers) for name, shape in layer.items()}
