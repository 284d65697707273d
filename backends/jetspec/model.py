"""Triton model: text (or ids) in, a decoupled stream of text out. `execute` only validates and queues; one thread decodes."""

import threading
import time

import triton_python_backend_utils as pb_utils
from jetspec_triton.candidates import MAX_DEPTH
from jetspec_triton.chat import PromptEncoder
from jetspec_triton.checkpoint import TargetConfig
from jetspec_triton.config import LoopSettings, Manifest, engine_directory, triton_parameters
from jetspec_triton.loop import DecodingLoop
from jetspec_triton.step import StepLimits
from jetspec_triton.warmup import measure_cost
from triton_adapter import EnsembleStep, Stream, TritonMetrics

STEP_DEADLINE_S = 600  # engines may take minutes to load


class TritonPythonModel:
    def initialize(self, args):
        parameters = triton_parameters(args["model_config"])
        directory = engine_directory(parameters, args["model_repository"])
        manifest = Manifest.load(directory)
        target = TargetConfig.load(directory)
        self._settings = LoopSettings.parse(parameters)
        self._encoder = PromptEncoder(directory, manifest.context)
        self._end_ids = frozenset(target.eos_token_ids)
        self._metrics = TritonMetrics(MAX_DEPTH)
        self._loop = DecodingLoop(
            EnsembleStep(StepLimits(manifest.slots, manifest.context, manifest.rows_per_step, manifest.draft_depth)),
            self._encoder.tokenizer,
            target.vocab_size,
            max_queue=self._settings.max_queue,
            prefill_rows=self._settings.prefill_rows,
            max_draft=self._settings.max_draft,
            metrics=self._metrics,
        )
        self._thread = threading.Thread(target=self._serve, name="jetspec-loop", daemon=True)
        self._thread.start()

    def _serve(self):
        """Wait for the engines, measure them, decode. Without engines every round fails and its requests are told."""
        deadline = time.monotonic() + STEP_DEADLINE_S
        while True:
            try:
                self._loop.cost = measure_cost(self._loop.step)
                break
            except Exception as error:
                if time.monotonic() > deadline:
                    pb_utils.Logger.log_error(f"jetspec_step did not answer within {STEP_DEADLINE_S} s: {error}")
                    break
                time.sleep(0.2)
        seconds = self._loop.cost.seconds
        shown = ", ".join(f"{n}: {seconds[n] * 1e3:.1f}" for n in (1, 2, 4, 8, 16, 32, 64) if n < len(seconds))
        pb_utils.Logger.log_info(f"jetspec is ready; milliseconds of a round by its rows: {shown}")
        self._loop.run()

    def execute(self, requests):
        for request in requests:
            stream = Stream(request, self._encoder, self._end_ids, self._settings.default_max_tokens)
            try:
                self._loop.submit(stream.parse())
            except Exception as error:  # one request's fault must not reach the others of this call
                self._metrics.count_refused()
                stream.fail(error)
        return None

    def finalize(self):
        self._loop.stop()
        self._thread.join(timeout=30)
