"""What the TensorRT runtime refuses at load, told by the plan's own description of itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jetspec_triton.errors import ConfigError
from jetspec_triton.in_place import Binding, draft_bindings, target_bindings
from jetspec_triton.tensorrt_runtime import TensorRTModel, build_facts, check_bindings, check_facts

from .tiny import CONFIG, DRAFT_CONFIG

EXPECTED = target_bindings(CONFIG, 2, 256, torch.float16)


def described(bindings) -> dict[str, Binding]:
    """As a plan describes itself: -1 for what varies."""
    return {
        name: Binding(b.dtype, tuple(-1 if isinstance(d, str) else d for d in b.shape))
        for name, b in bindings.of_every_tensor().items()
    }


@pytest.mark.parametrize("bindings", [EXPECTED, draft_bindings(DRAFT_CONFIG, 4, 8, 192, torch.bfloat16)])
def test_a_plan_that_fits_is_taken(bindings):
    check_bindings(described(bindings), bindings, Path("x.plan"))


@pytest.mark.parametrize(
    "name, binding, words",
    [
        ("hidden", Binding(torch.float16, (-1, -1, 96)), ["hidden", "(-1, -1, 96)", "(-1, -1, 64)"]),
        ("hidden", Binding(torch.float32, (-1, -1, 64)), ["hidden", "float32", "float16"]),
        ("tree_mask", Binding(torch.bool, (-1, 1, -1, 512)), ["tree_mask", "512", "256", "context"]),
        ("past_v_1", Binding(torch.float16, (-1, 4, 256, 8)), ["past_v_1", "(-1, 4, 256, 8)", "(-1, 2, 256, 8)"]),
        ("write_idx", Binding("UINT8", (-1,)), ["write_idx", "UINT8", "int64"]),
        ("write_idx", None, ["write_idx", "the plan has not"]),
        ("cos", Binding(torch.float16, (256, 4)), ["cos", "the plan has a tensor", "this version has not"]),
    ],
)
def test_a_wrong_tensor_is_named_with_both_shapes(name, binding, words):
    found = described(EXPECTED)
    found.pop(name, None)
    if binding is not None:
        found[name] = binding
    with pytest.raises(ConfigError) as refused:
        check_bindings(found, EXPECTED, Path("target.plan"))
    assert [word for word in words if word not in str(refused.value)] == []


def test_plans_for_another_version_or_gpu_are_refused_with_both_values():
    here = {"tensorrt": "11.0.0", "gpu": "NVIDIA H200", "compute_capability": "9.0"}
    check_facts({**here, "dtype": "bfloat16", "width": 8}, here, Path("engines"))
    for name, other in (("tensorrt", "10.16.1"), ("gpu", "NVIDIA L4"), ("compute_capability", "8.9")):
        with pytest.raises(ConfigError) as refused:
            check_facts({**here, name: other}, here, Path("engines"))
        assert other in str(refused.value) and here[name] in str(refused.value)


def test_a_directory_without_plans_says_what_to_build(tmp_path):
    with pytest.raises(ConfigError, match="jetspec build"):
        build_facts(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_so(tmp_path):
    with pytest.raises(ConfigError, match="CUDA"):
        TensorRTModel(tmp_path / "target.plan", EXPECTED, 4)
