"""One TensorRT-LLM model with its paged K/V cache, driven forward by forward. The only module that calls the package.

Written against release `SUPPORTED`, whose files docs/tensorrt_llm.md names call by call. Not proven: no GPU has run it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import TargetConfig
from ..config import check_tensor_parallel
from ..errors import ConfigError
from .tensorrt_llm import EngineOutput, EngineStep
from .tensorrt_llm_api import check_api, check_compact_op, check_device, check_model, check_version

TOKENS_PER_BLOCK = 32
_DEVICE = torch.device("cuda")


class Capture:
    """Stands where the model expects its speculation's metadata: the layers hand their outputs over to it."""

    def __init__(self, layers: tuple[int, ...]):
        self._layers, self._captured = layers, {}

    def is_layer_capture(self, layer_id: int) -> bool:
        return layer_id in self._layers

    def maybe_capture_hidden_states(self, layer_id: int, hidden_states: Tensor, residual: Tensor | None = None) -> None:
        if layer_id in self._layers:
            self._captured[layer_id] = hidden_states if residual is None else hidden_states + residual

    def take(self) -> Tensor:
        """`(T, n_layers * H)`, in the order the head names its layers."""
        features = torch.cat([self._captured[layer] for layer in self._layers], dim=-1)
        self._captured.clear()
        return features


class TensorRTLLMRuntime:
    """directory: a Hugging Face checkpoint in float16 or bfloat16. layers: those whose outputs are features. device: CUDA
    device number, made the process's current one.

    Slot `s` is a request of the cache manager that owns the blocks of `rows` rows for good. Raises `ConfigError`.
    """

    def __init__(
        self,
        directory: Path,
        config: TargetConfig,
        layers: tuple[int, ...],
        slots: int,
        rows: int,
        tensor_parallel: int = 1,
        device: int = 0,
    ):
        check_tensor_parallel("tensorrt_llm", tensor_parallel)
        check_version()
        check_device(torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None)
        torch.cuda.set_device(device)
        check_api()
        from tensorrt_llm._torch.model_config import ModelConfig
        from tensorrt_llm.mapping import Mapping

        check_compact_op()
        self._mapping = Mapping(world_size=1, tp_size=1, rank=0)
        self._slots, self._rows = slots, -(-rows // TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK
        self._most_tokens = slots * rows
        model_config = ModelConfig.from_pretrained(
            str(directory),
            trust_remote_code=False,
            mapping=self._mapping,
            attn_backend="TRTLLM",
            max_num_tokens=self._most_tokens,
            max_seq_len=self._rows,
        )
        theta = model_config.pretrained_config.rope_theta
        check_model(config, model_config.torch_dtype, theta)
        self._capture = Capture(layers)
        self._model = _load(model_config, directory)
        self._cache = self._make_cache(config, model_config.torch_dtype)
        self._row_bytes = config.head_dim * model_config.torch_dtype.itemsize
        self._workspace = torch.empty(0, dtype=torch.int8, device=_DEVICE)
        self._metadata = None

    def forward(self, step: EngineStep, logit_tokens: np.ndarray) -> EngineOutput:
        metadata = self._metadata = self._describe(step)
        hidden = self._model.model(
            attn_metadata=metadata,
            input_ids=_put(step.tokens),
            position_ids=_put(step.positions)[None],
            spec_metadata=self._capture,
        )
        wanted = hidden[_put(logit_tokens)]
        return EngineOutput(self._model.lm_head(wanted).float(), self._capture.take())

    def compact(self, step: EngineStep, moved: list[np.ndarray]) -> None:
        starts = np.concatenate(([0], np.cumsum([len(rows) for rows in moved])))
        cache, metadata = self._cache, self._metadata
        torch.ops.tensorrt_llm.update_kv_cache_draft_token_location(
            _put(starts.astype(np.int32)),
            _put(np.concatenate(moved).astype(np.int32)),
            metadata.kv_lens_cuda[: len(step.slots)],
            True,  # paged
            cache.num_layers,
            cache.num_kv_heads,
            self._row_bytes,
            step.trees.width - 1,  # rows back from the end of what was written: the node after the first
            cache.max_attention_window_vec[0],
            None,
            None,
            cache.kv_cache_pool_pointers,
            metadata.kv_cache_block_offsets,
            cache.max_blocks_per_seq,
            cache.tokens_per_block,
            None,
        )

    def _describe(self, step: EngineStep):
        from tensorrt_llm._torch.attention_backend.interface import AttentionRuntimeFeatures
        from tensorrt_llm._torch.attention_backend.trtllm import TrtllmAttentionMetadata
        from tensorrt_llm._torch.metadata import KVCacheParams
        from tensorrt_llm._torch.speculative.utils import SpecDecodingTensor

        metadata = TrtllmAttentionMetadata(
            seq_lens=torch.tensor(step.counts, dtype=torch.int),
            num_contexts=step.chunks,
            kv_cache_params=KVCacheParams(use_cache=True, num_cached_tokens_per_seq=step.cached),
            kv_cache_manager=self._cache,
            request_ids=step.slots,
            prompt_lens=step.counts[: step.chunks] + step.cached[step.chunks :],
            max_num_requests=self._slots,
            max_num_tokens=self._most_tokens,
            runtime_features=AttentionRuntimeFeatures(chunked_prefill=True, has_speculative_draft_tokens=True),
            workspace=self._workspace,
        )
        metadata.prepare()
        if step.trees is not None:
            trees = step.trees
            metadata.update_spec_dec_param(
                batch_size=len(trees.mask),
                is_spec_decoding_enabled=True,
                is_spec_dec_tree=True,
                is_spec_dec_dynamic_tree=True,
                max_draft_len=trees.width - 1,
                max_total_draft_tokens=trees.width - 1,
                spec_decoding_tensor=SpecDecodingTensor(
                    position_offsets=self._of_every_slot(trees.offsets),
                    packed_mask=self._of_every_slot(trees.mask),
                    generation_lengths=self._of_every_slot(trees.lengths),
                ),
            )
        return metadata

    def _of_every_slot(self, values: np.ndarray) -> Tensor:
        """The release copies whole buffers, of as many rows as there may be requests; the step's own come first."""
        padded = np.zeros((self._slots, *values.shape[1:]), np.int32)
        padded[: len(values)] = values
        return _put(padded)

    def _make_cache(self, config: TargetConfig, dtype: torch.dtype):
        from tensorrt_llm._torch.pyexecutor.resource_manager import KVCacheManager
        from tensorrt_llm.bindings import DataType
        from tensorrt_llm.bindings.internal.batch_manager import CacheType
        from tensorrt_llm.llmapi.llm_args import KvCacheConfig

        tokens = self._slots * (self._rows + TOKENS_PER_BLOCK)  # a block to spare for each
        cache = KVCacheManager(
            KvCacheConfig(max_tokens=tokens, enable_block_reuse=False),
            CacheType.SELF,
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            tokens_per_block=TOKENS_PER_BLOCK,
            max_seq_len=self._rows,
            max_batch_size=self._slots,
            mapping=self._mapping,
            dtype=DataType.HALF if dtype is torch.float16 else DataType.BF16,
        )
        blocks = cache.blocks_in_primary_pool
        if blocks * TOKENS_PER_BLOCK < tokens or cache.max_seq_len < self._rows:
            raise ConfigError(
                f"the GPU's free memory holds {blocks * TOKENS_PER_BLOCK} cache rows, {self._slots} slots of "
                f"{self._rows} rows need {tokens}; lower slots or context"
            )
        cache.add_dummy_requests(list(range(self._slots)), [self._rows] * self._slots)
        return cache


def _load(model_config, directory: Path):
    """The release's own model class with the checkpoint's weights."""
    from safetensors.torch import load_file
    from tensorrt_llm._torch.models import AutoModelForCausalLM

    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{directory} holds no *.safetensors file; expected a Hugging Face checkpoint directory")
    with torch.device(_DEVICE):
        model = AutoModelForCausalLM.from_config(model_config)
    model.to(_DEVICE)
    model.load_weights({name: tensor for file in files for name, tensor in load_file(file).items()})
    for module in model.modules():
        if hasattr(module, "post_load_weights"):
            module.post_load_weights()
    return model.eval()


def _put(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values).to(_DEVICE)
