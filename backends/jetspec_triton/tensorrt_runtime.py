"""Runs a TensorRT plan of an in-place graph: checked bindings, caches updated in place, one CUDA graph per shape."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from .config import PLAN_FACTS
from .errors import ConfigError, StepFailed
from .in_place import Binding, Bindings

_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}


def build_facts(directory: Path) -> dict:
    """`tensorrt.json`: tensorrt (version), gpu, compute_capability, dtype, width."""
    path = Path(directory) / PLAN_FACTS
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; run `jetspec build` on this machine first")
    return json.loads(path.read_text())


def plan_dtype(directory: Path) -> torch.dtype:
    return getattr(torch, build_facts(directory)["dtype"])


def plan_width(directory: Path) -> int:
    """Candidates per depth that the draft plan returns."""
    return build_facts(directory)["width"]


def this_machine(trt: ModuleType) -> dict[str, str]:
    """What a plan depends on: it runs on the version and the kind of GPU that it was built with."""
    major, minor = torch.cuda.get_device_capability()
    return {
        "tensorrt": trt.__version__,
        "gpu": torch.cuda.get_device_name(),
        "compute_capability": f"{major}.{minor}",
    }


def check_facts(built: dict, here: dict[str, str], directory: Path) -> None:
    """Raise `ConfigError` when the plans were built with another version or for another GPU."""
    for name, value in here.items():
        if built.get(name) != value:
            raise ConfigError(
                f"{directory}: the plans were built for {name} {built.get(name)}, this machine has {value}; rebuild here"
            )


def check_bindings(found: dict[str, Binding], expected: Bindings, plan: Path) -> None:
    """Raise `ConfigError` on the first tensor that is missing, unknown, or of another type or shape. -1 in `found` varies."""
    wanted = expected.of_every_tensor()
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found or name not in wanted:
            owner, other = ("the plan", "this version") if name in found else ("this version", "the plan")
            raise ConfigError(f"{plan}: {owner} has a tensor {name}, {other} has not; rebuild the engine")
        (dtype, shape), (wanted_dtype, wanted_shape) = found[name], wanted[name]
        fixed = tuple(-1 if isinstance(d, str) else d for d in wanted_shape)
        if dtype != wanted_dtype or tuple(shape) != fixed:
            raise ConfigError(
                f"{plan}: {name} is {dtype} {tuple(shape)}, expected {wanted_dtype} {fixed}; rebuild the engine with the "
                "manifest's context and rows_per_step"
            )


def _tensorrt() -> ModuleType:
    try:
        import tensorrt
    except ImportError as error:
        raise ConfigError(
            f"tensorrt cannot be imported ({error}); install the version the plans were built with"
        ) from error
    return tensorrt


class TensorRTModel:
    """An `InPlaceModel` on CUDA device number `device`. `slots`: batch entries of the caches. Raises `ConfigError`."""

    def __init__(self, plan: Path, bindings: Bindings, slots: int, device: int = 0, trt: ModuleType | None = None):
        if not torch.cuda.is_available():
            raise ConfigError(
                f"{plan} needs a CUDA device and torch sees none; serve an OpenVINO engine on this machine"
            )
        trt = trt or _tensorrt()
        torch.cuda.set_device(device)
        if not plan.is_file():
            raise ConfigError(f"{plan} does not exist; run `jetspec build` on this machine first")
        check_facts(build_facts(plan.parent), this_machine(trt), plan.parent)
        self._trt, self._bindings = trt, bindings
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        if self._engine is None:
            raise ConfigError(f"{plan} cannot be loaded by tensorrt {trt.__version__}; rebuild it with this version")
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        check_bindings({n: self._binding(n) for n in names}, bindings, plan)
        for past, present in bindings.caches.items():
            if self._engine.get_aliased_input_tensor(present) != past:
                raise ConfigError(f"{plan}: {present} does not update {past} in place; rebuild with this version")
        self._most = self._largest_sizes()
        if slots > self._most["B"]:
            raise ConfigError(f"slots is {slots}, {plan} was built for {self._most['B']}; rebuild it or serve fewer")
        cache = bindings.cache
        self.caches = torch.zeros(
            len(bindings.caches) // 2, 2, *cache.sized({"B": slots}), dtype=cache.dtype, device=device
        )
        self._buffers = {
            name: torch.zeros(prod(binding.sized(self._most)), dtype=binding.dtype, device=device)
            for name, binding in {**bindings.inputs, **bindings.outputs}.items()
        }
        self._scratch = torch.empty(max(self._engine.device_memory_size_v2, 1), dtype=torch.uint8, device=device)
        self._contexts: dict[tuple, object] = {}  # by shape; they share the scratch, one runs at a time
        self._graphs: dict[tuple, torch.cuda.CUDAGraph] = {}  # by shape and first slot

    def run(self, first_slot: int, feeds: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes = self._sizes(feeds)
        for name, tensor in feeds.items():
            self._view(name, sizes).copy_(tensor)
        shape = tuple(sorted(sizes.items()))
        graph = self._graphs.get((*shape, first_slot))
        if graph is not None:
            graph.replay()
        else:
            context = self._context(shape, sizes, first_slot)
            self._enqueue(context)  # gives this step's result and settles what a capture must not do
            self._graphs[(*shape, first_slot)] = self._capture(context)
        return {name: self._view(name, sizes) for name in self._bindings.outputs}

    def _capture(self, context) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._enqueue(context)
        return graph

    def _enqueue(self, context) -> None:
        if not context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            raise StepFailed("TensorRT refused to run the step; its log says why")

    def _context(self, shape: tuple, sizes: dict[str, int], first_slot: int):
        """The execution context of a shape, with every tensor's address set; captured graphs keep their own addresses."""
        context = self._contexts.get(shape)
        if context is None:
            context = self._engine.create_execution_context(self._trt.ExecutionContextAllocationStrategy.USER_MANAGED)
            context.set_device_memory(self._scratch.data_ptr(), self._scratch.numel())
            context.set_optimization_profile_async(self._profile(sizes), torch.cuda.current_stream().cuda_stream)
            for name, binding in self._bindings.inputs.items():
                context.set_input_shape(name, binding.sized(sizes))
            for name in self._bindings.caches:
                context.set_input_shape(name, self._bindings.cache.sized(sizes))
            for name, buffer in self._buffers.items():
                context.set_tensor_address(name, buffer.data_ptr())
            self._contexts[shape] = context
        for (past, present), cache in zip(self._bindings.caches.items(), self.caches.flatten(0, 1)):
            for name in (past, present):
                context.set_tensor_address(name, cache[first_slot].data_ptr())
        missing = context.infer_shapes()
        if missing:
            raise StepFailed(f"TensorRT lacks shapes or addresses of {missing}")
        return context

    def _sizes(self, feeds: dict[str, Tensor]) -> dict[str, int]:
        """What the named dimensions are in this step. Raises `StepFailed` beyond what the plan was built for."""
        sizes = {
            dim: feeds[name].shape[axis]
            for name, binding in self._bindings.inputs.items()
            for axis, dim in enumerate(binding.shape)
            if isinstance(dim, str)
        }
        for name, size in sizes.items():
            if size > self._most[name]:
                raise StepFailed(f"the step's {name} is {size}, the plan was built for {self._most[name]}; send less")
        return sizes

    def _view(self, name: str, sizes: dict[str, int]) -> Tensor:
        binding = self._bindings.inputs.get(name) or self._bindings.outputs[name]
        shape = binding.sized(sizes)
        return self._buffers[name][: prod(shape)].view(shape)

    def _binding(self, name: str) -> Binding:
        dtype = self._engine.get_tensor_dtype(name).name
        return Binding(_DTYPES.get(dtype, dtype), tuple(self._engine.get_tensor_shape(name)))

    def _range(self, name: str, profile: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        smallest, _, largest = self._engine.get_tensor_profile_shape(name, profile)
        return tuple(smallest), tuple(largest)

    def _largest_sizes(self) -> dict[str, int]:
        most: dict[str, int] = {}
        for name, binding in self._bindings.inputs.items():
            for profile in range(self._engine.num_optimization_profiles):
                for dim, size in zip(binding.shape, self._range(name, profile)[1]):
                    if isinstance(dim, str):
                        most[dim] = max(most.get(dim, 0), size)
        return most

    def _profile(self, sizes: dict[str, int]) -> int:
        """The first profile whose ranges hold the step: the build puts the narrow one first."""
        for profile in range(self._engine.num_optimization_profiles):
            for name, binding in self._bindings.inputs.items():
                low, high = self._range(name, profile)
                if not all(least <= size <= most for least, size, most in zip(low, binding.sized(sizes), high)):
                    break
            else:
                return profile
        raise StepFailed(f"no profile of the plan holds {sizes}; rebuild the engine")
