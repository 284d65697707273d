"""Triton model: one target engine. A request is one step's batch; see `jetspec_triton.step.StepBatch`."""

import numpy as np
import triton_python_backend_utils as pb_utils
from jetspec_triton.config import engine_directory, parse_threads, triton_parameters
from jetspec_triton.engines import open_target
from jetspec_triton.step import StepBatch


class TritonPythonModel:
    def initialize(self, args):
        parameters = triton_parameters(args["model_config"])
        directory = engine_directory(parameters, args["model_repository"])
        self._target = open_target(directory, parse_threads(parameters), int(args["model_instance_device_id"]))
        limits = self._target.limits
        pb_utils.Logger.log_info(
            f"target {directory.name}: {limits.slots} slots of {limits.context} rows, {limits.rows_per_step} rows a step"
        )

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        try:
            batch = StepBatch(*(pb_utils.get_input_tensor_by_name(request, n).as_numpy() for n in StepBatch._fields))
            step = self._target.extend(batch)
        except Exception as error:  # the requests of this step fail, the model goes on
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"target: {error}"))
        return pb_utils.InferenceResponse(output_tensors=[_tensor(*item) for item in step._asdict().items()])


def _tensor(name, values):
    """Features of an engine on a GPU stay there: they leave by DLPack."""
    if isinstance(values, np.ndarray):
        return pb_utils.Tensor(name, values)
    return pb_utils.Tensor.from_dlpack(name, values.contiguous())
