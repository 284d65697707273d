"""Compile an in-place graph to a TensorRT plan. `tensorrt` and `tensorrt_rtx` have one API: the module is a parameter."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from jetspec_triton.errors import ConfigError

Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]  # smallest, typical, largest by input


class LayerCounts(NamedTuple):
    cache_updates: int
    attentions: int


class Plan(NamedTuple):
    data: memoryview
    layers: LayerCounts


def compile_plan(
    trt: ModuleType,
    graph: Path,
    profiles: list[Shapes],
    decoder_layers: int,
    *,
    timing_cache: Path | None = None,
    ahead_of_time: bool = False,
    workspace: int = 4 << 30,
) -> Plan:
    """Compile `graph` (an `.onnx` with its `.data`) for the shapes of `profiles`.

    decoder_layers: each must have become two in-place cache updates and one fused attention. timing_cache: read when it
    exists, written back. ahead_of_time: for SM 8.0 without a GPU being here, which `tensorrt_rtx` can do. workspace: bytes
    the plan's kernels may use. Raises `ConfigError` with what the compiler said.
    """
    logger = _messages(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(graph)):
        first = parser.get_error(0) if parser.num_errors else logger.errors
        raise ConfigError(f"{graph} is not understood by {trt.__name__} {trt.__version__}: {first}")
    layers = count_layers(trt, network)
    expected = LayerCounts(2 * decoder_layers, decoder_layers)
    if layers != expected:
        raise ConfigError(
            f"{graph}: {trt.__name__} {trt.__version__} sees {layers}, expected {expected}; use the version it was written for"
        )
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, ranges in shapes.items():
            profile.set_shape(name, *ranges)
        if config.add_optimization_profile(profile) < 0:
            raise ConfigError(f"{graph}: the shapes {shapes} do not form a profile: {logger.errors}")
    if ahead_of_time:
        config.num_compute_capabilities = 1
        config.set_compute_capability(trt.ComputeCapability.SM80, 0)
    cache = None
    if timing_cache is not None:
        stored = timing_cache.read_bytes() if timing_cache.is_file() else b""
        cache = config.create_timing_cache(stored)
        config.set_timing_cache(cache, ignore_mismatch=False)
    data = builder.build_serialized_network(network, config)
    if data is None:
        raise ConfigError(f"{graph} does not compile with {trt.__name__} {trt.__version__}: {logger.errors}")
    if cache is not None:
        timing_cache.write_bytes(cache.serialize())
    return Plan(memoryview(data), layers)


def count_layers(trt: ModuleType, network) -> LayerCounts:
    """Cache updates, and attentions that may not be decomposed: the build fails unless they fuse."""
    kinds = trt.LayerType
    found = [network.get_layer(i) for i in range(network.num_layers)]
    attentions = [layer for layer in found if layer.type == kinds.ATTENTION_INPUT]
    for layer in attentions:
        layer.__class__ = trt.IAttentionInputLayer  # the binding hands out the base class
    return LayerCounts(
        sum(layer.type == kinds.KV_CACHE_UPDATE for layer in found),
        sum(not layer.attention.decomposable for layer in attentions),
    )


def _messages(trt: ModuleType):
    """A logger that keeps the compiler's errors; the base class is the module's own."""

    class Messages(trt.ILogger):
        def __init__(self):
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                self.errors.append(message)

    return Messages()
