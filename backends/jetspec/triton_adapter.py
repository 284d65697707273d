"""Between Triton and the loop: request tensors in, response tensors out, the step ensemble, the server's metrics."""

from __future__ import annotations

import secrets
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils
from jetspec_triton.chat import PromptEncoder
from jetspec_triton.errors import InvalidRequest, QueueFull, StepFailed, Stopping
from jetspec_triton.metrics import Metrics
from jetspec_triton.request import Delta, Request
from jetspec_triton.sampling import Sampling
from jetspec_triton.step import StepBatch, StepLimits, StepResult

# Inputs that TensorRT-LLM's Triton models take and this one cannot serve, with the value that asks for nothing.
NEUTRAL = {
    "decoder_text_input": "",
    "bad_words": "",
    "num_return_sequences": 1,
    "length_penalty": None,  # only steers beam search
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "return_context_logits": False,
    "return_generation_logits": False,
    "beam_width": 1,
    "embedding_bias_words": "",
    "embedding_bias_weights": 0.0,
    "guided_decoding_guide_type": "",
    "guided_decoding_guide": "",
}
ERROR_CODES = {InvalidRequest: "INVALID_ARG", QueueFull: "UNAVAILABLE", Stopping: "UNAVAILABLE"}
POLL_AFTER_S = 0.1
OUTPUT_DTYPES = {
    "output_ids": np.int32,
    "output_log_probs": np.float32,
    "cum_log_probs": np.float32,
    "acceptance_rate": np.float32,
    "seed": np.uint64,
    "arrival_time_ns": np.int64,
    "first_scheduled_time_ns": np.int64,
    "first_token_time_ns": np.int64,
    "last_token_time_ns": np.int64,
}


class EnsembleStep:
    """A step as one request to the `jetspec_step` ensemble, whole batch at once."""

    def __init__(self, limits: StepLimits):
        self.limits = limits

    def run(self, batch: StepBatch) -> StepResult:
        request = pb_utils.InferenceRequest(
            model_name="jetspec_step",
            requested_output_names=list(StepResult._fields),
            inputs=[pb_utils.Tensor(name, array) for name, array in batch._asdict().items()],
        )
        response = request.exec()
        if response.has_error():
            raise StepFailed(response.error().message())
        return StepResult(*(pb_utils.get_output_tensor_by_name(response, n).as_numpy() for n in StepResult._fields))


class Stream:
    """One request's response sender. Exactly one response carries the final flag; nothing is sent after it."""

    def __init__(self, request, encoder: PromptEncoder, end_ids: frozenset[int], default_max_tokens: int):
        self._sender = request.get_response_sender()
        self._wanted = set(request.requested_output_names())
        self._request, self._encoder = request, encoder
        self._end_ids, self._default_max_tokens = end_ids, default_max_tokens
        self._received = time.monotonic()
        self._prefix = ""
        self._cumulative = 0.0
        self._held: list[Delta] = []

    def parse(self) -> Request:
        """The loop's request. Raises `InvalidRequest` with the tensor's name, its value and the remedy."""
        self._refuse_unsupported()
        text, ids = self._value("text_input"), self._array("input_ids")
        if (text is None) == (ids is None):
            raise InvalidRequest("exactly one of text_input and input_ids is needed; send the prompt as one of them")
        if ids is not None and self._value("chat", False):
            raise InvalidRequest("chat is true with input_ids; it applies to text_input, leave it out")
        prompt = self._encoder.encode(text, bool(self._value("chat", False))) if ids is None else ids.ravel().tolist()
        if self._value("exclude_input_in_output", True) is False:
            self._prefix = text or self._encoder.tokenizer.decode(prompt)
        self._streaming = bool(self._value("stream", False))
        self.seed = int(self._value("seed", secrets.randbits(63)))
        stops = self._array("stop_words")
        end = self._value("end_id")
        return Request(
            prompt=prompt,
            max_tokens=int(self._value("max_tokens", self._default_max_tokens)),
            sampling=self._sampling(),
            sink=self.send,
            stops=tuple(_text("stop_words", s) for s in stops.ravel()) if stops is not None else (),
            end_ids=self._end_ids if end is None else frozenset([] if end == -1 else [end]),
            min_tokens=int(self._value("min_tokens", self._value("min_length", 0))),
            speculate=bool(self._value("speculate", True)),
            draft_cap=None if self._value("draft_budget") is None else int(self._value("draft_budget")),
            cancelled=self.cancelled,
        )

    def cancelled(self) -> bool:
        """Whether the client has gone. Asked late, because asking while `execute` runs can make the Python backend of Triton
        2.51 keep the finished request, so that the model is not unloaded; this makes it rarer, not impossible."""
        return time.monotonic() - self._received > POLL_AFTER_S and self._sender.is_cancelled()

    def send(self, delta: Delta) -> None:
        """Send one round's delta, or hold it back when the client wants one response."""
        if delta.error is not None:
            self.fail(delta.error)
            return
        self._held.append(delta)
        if delta.finish is None and not self._streaming:
            return
        merged = Delta(
            "".join(d.text for d in self._held),
            [i for d in self._held for i in d.ids],
            [p for d in self._held for p in d.log_probs],
            delta.finish,
        )
        self._held = []
        if merged.finish is None and not merged.ids:
            return
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if merged.finish else 0
        self._send(pb_utils.InferenceResponse(output_tensors=self._tensors(merged)), flags)

    def fail(self, error: Exception) -> None:
        """End the stream with an error response."""
        code = getattr(pb_utils.TritonError, ERROR_CODES.get(type(error), "INTERNAL"))
        failure = pb_utils.TritonError(str(error), code)
        self._send(pb_utils.InferenceResponse(error=failure), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _send(self, response, flags: int) -> None:
        try:
            self._sender.send(response, flags=flags)
        except Exception as error:  # the client is gone; the next poll of is_cancelled retires the sequence
            pb_utils.Logger.log_verbose(f"a response could not be sent: {error}")

    def _sampling(self) -> Sampling:
        temperature, top_k, top_p = (self._value(n) for n in ("temperature", "top_k", "top_p"))
        if temperature is None:  # asking for top-k or top-p asks for sampling
            temperature = 1.0 if (top_k or 0) > 1 or (top_p is not None and top_p < 1.0) else 0.0
        return Sampling(float(temperature), int(top_k or 0), 1.0 if top_p is None else float(top_p), self.seed)

    def _tensors(self, delta: Delta) -> list:
        self._cumulative += sum(delta.log_probs)
        text, self._prefix = self._prefix + delta.text, ""
        values = {
            "text_output": text,
            "output_ids": delta.ids,
            "output_log_probs": [delta.log_probs],
            "cum_log_probs": self._cumulative,
            "finish_reason": "",
            "seed": self.seed,
            "sequence_index": 0,
            "batch_index": 0,
            **dict.fromkeys(("num_input_tokens", "num_output_tokens", "num_rounds"), 0),
            **dict.fromkeys(("total_draft_tokens", "total_accepted_draft_tokens", "acceptance_rate"), 0),
            "accepted_by_depth": [],
            **dict.fromkeys((n for n in OUTPUT_DTYPES if n.endswith("_ns")), 0),
        }
        if end := delta.finish:
            values |= {
                "finish_reason": end.reason,
                "num_input_tokens": end.prompt_tokens,
                "num_output_tokens": end.output_tokens,
                "num_rounds": end.rounds,
                "total_draft_tokens": end.draft_tokens,
                "total_accepted_draft_tokens": end.accepted_tokens,
                "acceptance_rate": end.accepted_tokens / max(end.draft_tokens, 1),
                "accepted_by_depth": list(end.accepted_by_depth),
                "arrival_time_ns": end.arrival_ns,
                "first_scheduled_time_ns": end.scheduled_ns,
                "first_token_time_ns": end.first_token_ns,
                "last_token_time_ns": end.last_token_ns,
            }
        return [_tensor(name, value) for name, value in values.items() if name in self._wanted]

    def _refuse_unsupported(self) -> None:
        for name, neutral in NEUTRAL.items():
            array = self._array(name)
            if array is None or neutral is None:
                continue
            values = [_text(name, v) if isinstance(v, bytes) else v for v in array.ravel().tolist()]
            if any(v != neutral for v in values):
                raise InvalidRequest(f"{name} is {values}, this model serves only {neutral!r}; leave it out")

    def _array(self, name: str) -> np.ndarray | None:
        tensor = pb_utils.get_input_tensor_by_name(self._request, name)
        return None if tensor is None else tensor.as_numpy()

    def _value(self, name: str, default=None):
        array = self._array(name)
        if array is None:
            return default
        if array.size != 1:
            raise InvalidRequest(f"{name} has {array.size} values, it takes 1")
        value = array.ravel()[0]
        return _text(name, value) if isinstance(value, bytes) else value.item()


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8 ({error}); encode it as UTF-8") from None


def _tensor(name: str, value):
    if isinstance(value, str):
        array = np.array([value.encode()], np.object_)
    else:
        array = np.atleast_1d(np.asarray(value, OUTPUT_DTYPES.get(name, np.int32)))
    return pb_utils.Tensor(name, array)


class TritonMetrics(Metrics):
    """Publishes on the server's metrics endpoint. Metric calls from several threads of one stub crash the server: the
    loop's thread is the only caller, the lock guards the refusals that `execute` counts."""

    def __init__(self, depth: int):
        family, self._lock = pb_utils.MetricFamily, threading.Lock()
        counter, gauge, histogram = family.COUNTER, family.GAUGE, family.HISTOGRAM

        def one(name: str, description: str, kind, **options):
            made = family(name=f"jetspec_{name}", description=description, kind=kind)
            self._families.append(made)
            return made.Metric(labels={}, **options)

        self._families: list = []
        self._running = one("running_requests", "Sequences in slots", gauge)
        self._waiting = one("waiting_requests", "Requests in the queue", gauge)
        self._rounds = one("rounds_total", "Steps of the engines", counter)
        self._rows = one("rows_total", "Nodes that the target computed", counter)
        self._emitted = one("emitted_tokens_total", "Tokens sent to clients", counter)
        self._drafted = one("draft_tokens_total", "Drafted nodes that were verified", counter)
        self._accepted = one("accepted_tokens_total", "Drafted nodes that were accepted", counter)
        self._step_seconds = one("step_seconds_total", "Time in the engines, transport included", counter)
        self._host_seconds = one("host_seconds_total", "Time in the loop outside the engines", counter)
        buckets = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30]
        self._ttft = one("time_to_first_token_seconds", "Arrival to first token", histogram, buckets=buckets)
        by_depth = family(name="jetspec_accepted_by_depth_total", description="Accepted nodes by depth", kind=counter)
        ended = family(name="jetspec_requests_total", description="Ended requests by reason", kind=counter)
        self._families += [by_depth, ended]
        self._depths = [by_depth.Metric(labels={"depth": str(d + 1)}) for d in range(depth)]
        reasons = ("stop", "length", "cancelled", "error", "refused")
        self._ended = {reason: ended.Metric(labels={"reason": reason}) for reason in reasons}

    def set_load(self, running: int, waiting: int) -> None:
        with self._lock:
            self._running.set(running)
            self._waiting.set(waiting)

    def observe_round(self, rows: int, drafted: int, step_seconds: float, host_seconds: float) -> None:
        with self._lock:
            self._rounds.increment(1)
            self._rows.increment(rows)
            self._drafted.increment(drafted)
            self._step_seconds.increment(step_seconds)
            self._host_seconds.increment(host_seconds)

    def observe_emitted(self, sequence, tokens: int, drafted: int, accepted: int) -> None:
        with self._lock:
            self._emitted.increment(tokens)
            self._accepted.increment(accepted)
            for metric in self._depths[:accepted]:
                metric.increment(1)
            if sequence.rounds == 1:
                self._ttft.observe((sequence.first_token_ns - sequence.arrival_ns) / 1e9)

    def observe_finished(self, sequence, reason: str) -> None:
        with self._lock:
            self._ended[reason].increment(1)

    def count_refused(self) -> None:
        with self._lock:
            self._ended["refused"].increment(1)
