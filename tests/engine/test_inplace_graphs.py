"""What the in-place graphs do beyond the shared engine tests: Qwen3's norms, one bounded cache, half precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from jetspec_build.graphs.inplace_draft import write_inplace_draft
from jetspec_build.graphs.inplace_target import write_inplace_target
from jetspec_triton.checkpoint import DraftConfig, TargetConfig
from jetspec_triton.in_place import target_bindings
from jetspec_triton.targets.base import TargetLimits
from jetspec_triton.targets.tensorrt import TensorRTTarget
from transformers import Qwen3Config, Qwen3ForCausalLM

from ..unit.batches import BatchRow, chain_row, step_batch
from .onnx_runtime import OnnxRuntimeModel

QWEN3 = TargetConfig("qwen3", 64, 96, 3, 4, 2, 32, 80, 1e-6, 50000.0, False, 512, (0,))
HEAD = DraftConfig(64, 96, 2, 4, 2, 32, 80, 1e-6, 50000.0, 8, (0, 2), 3, 1)


def qwen3() -> Qwen3ForCausalLM:
    torch.manual_seed(6)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=QWEN3.vocab_size,
            hidden_size=QWEN3.hidden_size,
            intermediate_size=QWEN3.intermediate_size,
            num_hidden_layers=QWEN3.num_layers,
            num_attention_heads=QWEN3.num_heads,
            num_key_value_heads=QWEN3.num_kv_heads,
            head_dim=QWEN3.head_dim,
            rms_norm_eps=QWEN3.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": QWEN3.rope_theta},
            tie_word_embeddings=False,
        )
    )
    for parameter in model.parameters():
        noise = torch.rand_like(parameter) + 0.5 if parameter.dim() == 1 else torch.randn_like(parameter) * 0.2
        parameter.data.copy_(noise)
    return model.eval().requires_grad_(False)


def test_qwen3_prefill_tree_and_commit_equal_transformers(tmp_path):
    model = qwen3()
    tensors = {n.removeprefix("model."): t.numpy() for n, t in model.state_dict().items()}
    write_inplace_target(QWEN3, tensors, (0, 2), 64, tmp_path / "target.onnx", dtype=np.float32)
    runner = OnnxRuntimeModel(tmp_path / "target.onnx", target_bindings(QWEN3, 2, 64, torch.float32), 2)
    target = TensorRTTarget(QWEN3, TargetLimits(2, 48, 16), runner)

    def greedy(text: list[int], count: int) -> list[int]:
        for _ in range(count):
            text = [*text, int(model(torch.tensor([text])).logits[0, -1].argmax())]
        return text

    text = greedy([5, 9, 33, 2], 16)
    assert len(set(text[4:])) > 3
    assert target.extend(step_batch([chain_row(1, 0, text[:4])])).emitted.tolist() == text[4:5]
    length = 4
    while length < 14:
        wrong, right = (text[length + 1] + 1) % QWEN3.vocab_size, text[length + 1 : length + 3]
        tree = BatchRow(1, length, [text[length], wrong, *right], [-1, 0, 0, 2])
        step = target.extend(step_batch([tree]))
        assert step.emitted.tolist() == text[length + 1 : length + 1 + len(step.emitted)] and len(step.emitted) >= 2
        states = model(torch.tensor([text]), output_hidden_states=True)
        kept = slice(length, length + len(step.emitted))
        features = torch.cat((states.hidden_states[1], states.hidden_states[3]), dim=-1)[0, kept]
        # transformers normalises the last layer's entry, so only the first captured layer is comparable
        assert torch.allclose(step.features[:, :64], features[:, :64], atol=1e-4)
        log_probs = states.logits.log_softmax(-1)[0, range(length, kept.stop), text[length + 1 : kept.stop + 1]]
        assert np.allclose(step.log_probs, log_probs.numpy(), atol=1e-4)
        length = kept.stop


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_graphs_are_valid_and_strongly_typed(tmp_path, dtype):
    """Every norm runs in float32, every product and cache in the graph's type."""
    rng = np.random.default_rng(1)

    def weights(config, extra: dict) -> dict[str, np.ndarray]:
        hidden, mlp, heads, kv, dim = 64, 96, 4, 2, 32
        shapes = dict(extra)
        for i in range(config.num_layers):
            attention = {"q": (heads * dim, hidden), "k": (kv * dim, hidden), "v": (kv * dim, hidden)}
            attention["o"] = (hidden, heads * dim)
            for n, shape in attention.items():
                shapes[f"layers.{i}.self_attn.{n}_proj.weight"] = shape
            for n in ("q", "k"):
                shapes[f"layers.{i}.self_attn.{n}_norm.weight"] = (dim,)
            for n, shape in (("gate", (mlp, hidden)), ("up", (mlp, hidden)), ("down", (hidden, mlp))):
                shapes[f"layers.{i}.mlp.{n}_proj.weight"] = shape
            for n in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"layers.{i}.{n}.weight"] = (hidden,)
        return {n: rng.normal(size=shape).astype(dtype) for n, shape in shapes.items()}

    table = rng.normal(size=(80, 64)).astype(dtype)
    target = weights(QWEN3, {"embed_tokens.weight": (80, 64), "lm_head.weight": (80, 64), "norm.weight": (64,)})
    head = weights(HEAD, {"fc.weight": (64, 128), "hidden_norm.weight": (64,), "norm.weight": (64,)})
    write_inplace_target(QWEN3, target, (0, 2), 64, tmp_path / "target.onnx", dtype=dtype)
    write_inplace_draft(HEAD, head, table, table, 8, 7, 64, tmp_path / "draft.onnx", dtype=dtype)
    for name, layers in (("target", 3), ("draft", 2)):
        model = onnx.load(tmp_path / f"{name}.onnx")
        onnx.checker.check_model(str(tmp_path / f"{name}.onnx"), full_check=True)  # shapes and types of every node too
        kinds = [node.op_type for node in model.graph.node]
        assert kinds.count("TensorScatter") == 2 * layers and kinds.count("Attention") == layers
        types = {
            v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(model).graph.value_info
        }
        norms = [node for node in model.graph.node if node.op_type == "RMSNormalization"]
        assert norms and all(types[node.output[0]] == onnx.TensorProto.FLOAT for node in norms)
        caches = [v for v in (*model.graph.input, *model.graph.output) if v.name.startswith(("past_", "present_"))]
        assert {v.type.tensor_type.elem_type for v in caches} == {onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}
