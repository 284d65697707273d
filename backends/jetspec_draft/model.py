"""Triton model: one draft head. A request is what one step of the target left; see `jetspec_triton.drafts.base.DraftInput`."""

import triton_python_backend_utils as pb_utils
from jetspec_triton.config import engine_directory, parse_threads, triton_parameters
from jetspec_triton.drafts.base import DraftInput
from jetspec_triton.engines import open_draft


class TritonPythonModel:
    def initialize(self, args):
        parameters = triton_parameters(args["model_config"])
        directory = engine_directory(parameters, args["model_repository"])
        self._draft = open_draft(directory, parse_threads(parameters), int(args["model_instance_device_id"]))
        pb_utils.Logger.log_info(f"draft head {directory.name}: depth {self._draft.config.depth}")

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        try:
            arrays = (_array(pb_utils.get_input_tensor_by_name(request, n)) for n in DraftInput._fields)
            ids, log_probs = self._draft.propose(DraftInput(*arrays))
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"draft head: {error}"))
        tensors = [pb_utils.Tensor("draft_ids", ids), pb_utils.Tensor("draft_log_probs", log_probs)]
        return pb_utils.InferenceResponse(output_tensors=tensors)


def _array(tensor):
    """Features of a target on a GPU come, and stay, there."""
    if tensor.is_cpu():
        return tensor.as_numpy()
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(tensor.to_dlpack())
