"""What the TensorRT-LLM target needs of its surroundings, checked at load: release, device, names and parameters."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from typing import NamedTuple

import torch

from ..checkpoint import TargetConfig
from ..errors import ConfigError

SUPPORTED = "1.2.1"
IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"  # carries that release
_REMEDY = f"use the image {IMAGE}, see build/docker"
COMPACT_OP, COMPACT_ARGUMENTS = "update_kv_cache_draft_token_location", 16


class Symbol(NamedTuple):
    """A name in the package, the parameters it is called with, and attributes that are read from it."""

    module: str
    path: str
    parameters: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


_TORCH = "tensorrt_llm._torch"
API = (
    Symbol("tensorrt_llm.mapping", "Mapping.__init__", ("world_size", "tp_size", "rank")),
    Symbol("tensorrt_llm.bindings", "DataType", attributes=("HALF", "BF16")),
    Symbol("tensorrt_llm.bindings.internal.batch_manager", "CacheType", attributes=("SELF",)),
    Symbol("tensorrt_llm.llmapi.llm_args", "KvCacheConfig", ("max_tokens", "enable_block_reuse")),
    Symbol(f"{_TORCH}.model_config", "ModelConfig", ("mapping", "attn_backend", "max_num_tokens", "max_seq_len")),
    Symbol(f"{_TORCH}.model_config", "ModelConfig.from_pretrained", ("checkpoint_dir", "trust_remote_code")),
    Symbol(f"{_TORCH}.models", "AutoModelForCausalLM.from_config", ("config",)),
    Symbol(f"{_TORCH}.models.modeling_utils", "DecoderModelForCausalLM.load_weights", ("weights",)),
    Symbol(
        f"{_TORCH}.models.modeling_llama",
        "LlamaModel.forward",
        ("attn_metadata", "input_ids", "position_ids", "spec_metadata"),
    ),
    Symbol(
        f"{_TORCH}.models.modeling_qwen3",
        "Qwen3Model.forward",
        ("attn_metadata", "input_ids", "position_ids", "spec_metadata"),
    ),
    Symbol(f"{_TORCH}.metadata", "KVCacheParams", ("use_cache", "num_cached_tokens_per_seq")),
    Symbol(
        f"{_TORCH}.pyexecutor.resource_manager",
        "KVCacheManager",
        (
            "kv_cache_config",
            "kv_cache_type",
            "num_layers",
            "num_kv_heads",
            "head_dim",
            "tokens_per_block",
            "max_seq_len",
            "max_batch_size",
            "mapping",
            "dtype",
        ),
    ),
    Symbol(f"{_TORCH}.pyexecutor.resource_manager", "KVCacheManager.add_dummy_requests", ("request_ids", "token_nums")),
    Symbol(
        f"{_TORCH}.attention_backend.interface",
        "AttentionRuntimeFeatures",
        ("chunked_prefill", "has_speculative_draft_tokens"),
    ),
    Symbol(
        f"{_TORCH}.attention_backend.trtllm",
        "TrtllmAttentionMetadata",
        (
            "seq_lens",
            "num_contexts",
            "kv_cache_params",
            "kv_cache_manager",
            "request_ids",
            "prompt_lens",
            "max_num_requests",
            "max_num_tokens",
            "runtime_features",
            "workspace",
        ),
    ),
    Symbol(f"{_TORCH}.attention_backend.trtllm", "TrtllmAttentionMetadata.prepare"),
    Symbol(
        f"{_TORCH}.attention_backend.trtllm",
        "TrtllmAttentionMetadata.update_spec_dec_param",
        (
            "batch_size",
            "is_spec_decoding_enabled",
            "is_spec_dec_tree",
            "is_spec_dec_dynamic_tree",
            "max_draft_len",
            "max_total_draft_tokens",
            "spec_decoding_tensor",
        ),
    ),
    Symbol(
        f"{_TORCH}.speculative.utils", "SpecDecodingTensor", ("position_offsets", "packed_mask", "generation_lengths")
    ),
)


def check_version() -> None:
    """Raises `ConfigError` unless the installed release is `SUPPORTED`."""
    try:
        version = importlib.metadata.version("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"tensorrt_llm is not installed, the target needs {SUPPORTED}; {_REMEDY}") from None
    if version.split("+")[0] != SUPPORTED:
        raise ConfigError(f"tensorrt_llm is {version}, this target was written for {SUPPORTED}; {_REMEDY}")


def check_device(capability: tuple[int, int] | None) -> None:
    """Trees run on compute capability 8.0 to 9.0 and 12.x; on 10.x the release has no such kernels. None: no device."""
    if capability is None:
        raise ConfigError("there is no CUDA device, the tensorrt_llm engine needs one; run it where a GPU is")
    major, minor = capability
    if major not in (8, 9, 12):
        raise ConfigError(
            f"the device has compute capability {major}.{minor}, token trees run on 8.0 to 9.0 and 12.x in TensorRT-LLM "
            f"{SUPPORTED}; use another device or the tensorrt engine"
        )


def check_model(config: TargetConfig, dtype: torch.dtype, rope_theta: float) -> None:
    """What the release's tree attention and this target can run. dtype, rope_theta: as the package read them."""
    if dtype not in (torch.float16, torch.bfloat16):
        raise ConfigError(f"the checkpoint's dtype is {dtype}, tree attention takes float16 and bfloat16; convert it")
    if rope_theta != config.rope_theta:
        raise ConfigError(
            f"config.json means a rope_theta of {config.rope_theta}, TensorRT-LLM {SUPPORTED} reads {rope_theta}; "
            "write rope_theta at its top level"
        )
    if config.head_dim % 16 or config.head_dim > 256:
        raise ConfigError(
            f"head_dim is {config.head_dim}, tree attention takes multiples of 16 up to 256; use another target"
        )
    if (group := config.num_heads // config.num_kv_heads) > 32:
        raise ConfigError(f"{group} query heads share a key head, tree attention takes 32; use another target")


def check_api(symbols: tuple[Symbol, ...] = API) -> None:
    """Raises `ConfigError` with every name of `symbols` that is missing or has other parameters in what is installed."""
    wrong = [complaint for symbol in symbols if (complaint := _complaint(symbol))]
    if wrong:
        raise ConfigError(f"tensorrt_llm is not as {SUPPORTED} was: {'; '.join(wrong)}. {_REMEDY}")


def check_compact_op() -> None:
    """The operator that moves accepted K/V rows exists and takes as many arguments as we give. Needs the package loaded."""
    operator = getattr(torch.ops.tensorrt_llm, COMPACT_OP, None)
    count = len(operator.default._schema.arguments) if operator is not None else 0
    if count != COMPACT_ARGUMENTS:
        raise ConfigError(
            f"the operator tensorrt_llm::{COMPACT_OP} takes {count} arguments (0: it is missing), "
            f"expected are {COMPACT_ARGUMENTS}; {_REMEDY}"
        )


def resolve(symbol: Symbol):
    """The object itself. Raises ImportError or AttributeError."""
    value = importlib.import_module(symbol.module)
    for name in symbol.path.split("."):
        value = getattr(value, name)
    return value


def _complaint(symbol: Symbol) -> str:
    name = f"{symbol.module}.{symbol.path}"
    try:
        value = resolve(symbol)
    except (ImportError, AttributeError) as error:
        return f"{name} is missing ({error})"
    if absent := [attribute for attribute in symbol.attributes if not hasattr(value, attribute)]:
        return f"{name} has no {', '.join(absent)}"
    if not symbol.parameters:
        return ""
    try:
        there = inspect.signature(value).parameters
    except (TypeError, ValueError) as error:
        return f"{name} has no readable signature ({error})"
    if absent := [parameter for parameter in symbol.parameters if parameter not in there]:
        return f"{name} has no parameter {', '.join(absent)}, it has {', '.join(there)}"
    return ""
