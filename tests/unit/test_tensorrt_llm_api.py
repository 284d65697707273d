"""The checks at load, with small stand-ins for the package: as expected, a name missing, a parameter renamed."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass, replace
from types import ModuleType

import pytest
import torch
from jetspec_triton.errors import ConfigError
from jetspec_triton.targets import tensorrt_llm_api as api
from jetspec_triton.targets.tensorrt_llm_api import Symbol

from .tiny import CONFIG


@dataclass(kw_only=True)
class Metadata:
    seq_lens: list
    num_contexts: int

    def prepare(self) -> None: ...

    def update(self, batch_size, max_draft_len, spec_decoding_tensor=None) -> None: ...


NEEDED = (
    Symbol("standin_llm.backend", "Metadata", ("seq_lens", "num_contexts")),
    Symbol("standin_llm.backend", "Metadata.prepare"),
    Symbol("standin_llm.backend", "Metadata.update", ("batch_size", "spec_decoding_tensor")),
    Symbol("standin_llm.backend", "Kind", attributes=("SELF",)),
)


@pytest.fixture
def package(monkeypatch):
    """`standin_llm.backend`, which a test may spoil."""
    backend = ModuleType("standin_llm.backend")
    backend.Metadata, backend.Kind = Metadata, type("Kind", (), {"SELF": 1})
    monkeypatch.setitem(sys.modules, "standin_llm", ModuleType("standin_llm"))
    monkeypatch.setitem(sys.modules, "standin_llm.backend", backend)
    return backend


def complaints(symbols=NEEDED) -> str:
    with pytest.raises(ConfigError) as caught:
        api.check_api(symbols)
    return str(caught.value)


def test_what_fits_passes(package):
    api.check_api(NEEDED)


def test_a_renamed_parameter_is_named_with_what_is_there(package):
    class Renamed(Metadata):
        def update(self, batch_size, max_draft_len, tree_manager=None) -> None: ...

    package.Metadata = Renamed
    told = complaints()
    assert "standin_llm.backend.Metadata.update has no parameter spec_decoding_tensor" in told
    assert "tree_manager" in told and api.SUPPORTED in told and api.IMAGE in told


def test_a_missing_field_of_a_dataclass(package):
    @dataclass
    class Fewer:
        seq_lens: list
        prepare = update = Metadata.update

    package.Metadata = Fewer
    assert "Metadata has no parameter num_contexts" in complaints()


def test_every_missing_name_is_listed(package):
    del package.Metadata, package.Kind.SELF
    told = complaints()
    assert told.count("is missing") == 3 and "Kind has no SELF" in told


def test_a_missing_module():
    assert "no_such_llm.x.Y is missing" in complaints((Symbol("no_such_llm.x", "Y"),))


def test_the_version_must_be_the_one_this_was_written_for(monkeypatch):
    def installed(version):
        monkeypatch.setattr(importlib.metadata, "version", lambda name: version)

    installed(api.SUPPORTED)
    api.check_version()
    installed(api.SUPPORTED + "+cu131")
    api.check_version()
    for other in ("1.2.0", "1.2.10", "1.3.0rc14"):
        installed(other)
        with pytest.raises(ConfigError, match=f"is {other}.*{api.SUPPORTED}.*docker"):
            api.check_version()


def test_without_the_package_the_error_says_where_to_get_it(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ConfigError, match="not installed.*tritonserver"):
        api.check_version()


def test_devices():
    for capability in ((8, 0), (8, 9), (9, 0), (12, 0)):
        api.check_device(capability)
    for capability in ((7, 5), (10, 0), (10, 3)):
        with pytest.raises(ConfigError, match=f"{capability[0]}.{capability[1]}"):
            api.check_device(capability)
    with pytest.raises(ConfigError, match="no CUDA device"):
        api.check_device(None)


def test_models():
    fits, theta = replace(CONFIG, head_dim=64), CONFIG.rope_theta
    api.check_model(fits, torch.bfloat16, theta)
    for config, dtype, read_theta, told in (
        (fits, torch.float32, theta, "float32"),
        (fits, torch.float16, theta + 1, "rope_theta of 10000.0.*reads 10001.0"),
        (replace(fits, head_dim=40), torch.float16, theta, "head_dim is 40"),
        (replace(fits, head_dim=512), torch.float16, theta, "head_dim is 512"),
        (replace(fits, num_heads=64, num_kv_heads=1), torch.float16, theta, "64 query heads"),
    ):
        with pytest.raises(ConfigError, match=told):
            api.check_model(config, dtype, read_theta)


def test_the_operator_that_moves_rows():
    with pytest.raises(ConfigError, match="takes 0 arguments"):
        api.check_compact_op()
    for count in (15, 16):
        library = torch.library.Library("tensorrt_llm", "FRAGMENT")
        library.define(f"{api.COMPACT_OP}({', '.join(f'int a{i}' for i in range(count))}) -> ()")
        try:
            if count == api.COMPACT_ARGUMENTS:
                api.check_compact_op()
            else:
                with pytest.raises(ConfigError, match=f"takes {count} arguments"):
                    api.check_compact_op()
        finally:
            library._destroy()
            torch.ops.tensorrt_llm.__dict__.pop(api.COMPACT_OP, None)


def test_opening_says_what_is_missing_here(tmp_path):
    from jetspec_triton.targets.base import TargetLimits
    from jetspec_triton.targets.tensorrt_llm_runtime import TensorRTLLMRuntime

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU; tests/gpu covers it")
    limits = TargetLimits(2, 64, 8)
    with pytest.raises(ConfigError, match="tensorrt_llm is not installed|no CUDA device"):
        TensorRTLLMRuntime(tmp_path, CONFIG, (0,), limits.slots, 80)
    with pytest.raises(ConfigError, match="tensor_parallel is 2.*rank"):
        TensorRTLLMRuntime(tmp_path, CONFIG, (0,), limits.slots, 80, tensor_parallel=2)
