"""The Python client: one prompt in, an iterator of chunks out, over gRPC streaming."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

OUTPUTS = (
    "text_output",
    "output_ids",
    "output_log_probs",
    "finish_reason",
    "seed",
    "num_input_tokens",
    "num_output_tokens",
    "num_rounds",
    "total_draft_tokens",
    "total_accepted_draft_tokens",
    "accepted_by_depth",
)


_NO_SERVER = ("failed to connect", "Socket closed", "DNS resolution", "Connection refused")


class ServerUnavailable(ConnectionError):
    """No server answers at this address."""


@dataclass(frozen=True)
class Options:
    """What a request may set; None leaves the server's default. Names are the model's input tensors."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop_words: tuple[str, ...] = ()
    end_id: int | None = None  # -1 never ends at an end token
    chat: bool | None = None  # the prompt is one user turn: apply the model's chat template
    speculate: bool | None = None
    draft_budget: int | None = None

    _dtypes = {
        "max_tokens": ("INT32", np.int32),
        "min_tokens": ("INT32", np.int32),
        "temperature": ("FP32", np.float32),
        "top_k": ("INT32", np.int32),
        "top_p": ("FP32", np.float32),
        "seed": ("UINT64", np.uint64),
        "end_id": ("INT32", np.int32),
        "chat": ("BOOL", np.bool_),
        "speculate": ("BOOL", np.bool_),
        "draft_budget": ("INT32", np.int32),
    }

    def tensors(self) -> list[grpcclient.InferInput]:
        made = []
        for name, (kind, dtype) in self._dtypes.items():
            value = getattr(self, name)
            if value is not None:
                if np.issubdtype(dtype, np.integer) and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                    limits = np.iinfo(dtype)
                    raise ValueError(f"{name} is {value}, valid is {limits.min} to {limits.max}")
                made.append(_input(name, kind, np.array([value], dtype)))
        if self.stop_words:
            made.append(_input("stop_words", "BYTES", np.array([s.encode() for s in self.stop_words], np.object_)))
        return made


@dataclass
class Chunk:
    """One response: what a round added. The last one has `finish_reason` and the request's counts."""

    text: str
    ids: list[int]
    log_probs: list[float]
    finish_reason: str = ""
    seed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    accepted_by_depth: list[int] = field(default_factory=list)


class Client:
    """Streams from one server. Every stream has a connection of its own, so a client can be used from many threads."""

    def __init__(self, url: str = "127.0.0.1:8001", model: str = "jetspec", timeout_s: float = 600.0):
        if "://" in url:
            raise ValueError(f"url is {url!r}, expected is host:port of the gRPC door, such as 127.0.0.1:8001")
        self.url, self.model, self.timeout_s = url, model, timeout_s

    def stream(self, prompt: str | list[int], options: Options = Options()) -> Iterator[Chunk]:
        """Chunks of one answer. Leaving the iterator early cancels the request on the server.

        Raises `ValueError` for an integer its tensor cannot hold, `ServerUnavailable` when nothing answers at the address, `InferenceServerException` with the server's message
        when it refuses or fails.
        """
        inputs = [*_prompt(prompt), *options.tensors(), _input("stream", "BOOL", np.array([True]))]
        client = grpcclient.InferenceServerClient(self.url)
        answers: queue.Queue[_Answer] = queue.Queue()
        # with this header errors carry their gRPC status; the stream then ends, which is right for one request
        headers = {"triton_grpc_error": "true"}
        client.start_stream(lambda result, error: answers.put(_Answer(result, error)), headers=headers)
        try:
            with suppress(InferenceServerException):  # the reason of a broken stream is in the queue
                client.async_stream_infer(
                    self.model,
                    inputs,
                    outputs=[grpcclient.InferRequestedOutput(name) for name in OUTPUTS],
                    enable_empty_final_response=True,
                )
            while True:
                try:
                    result, error = answers.get(timeout=self.timeout_s)
                except queue.Empty:
                    raise TimeoutError(f"no answer from {self.url} within {self.timeout_s:.0f} s") from None
                if error is not None:
                    if any(sign in str(error) for sign in _NO_SERVER):
                        reason = error.message()
                        raise ServerUnavailable(f"no server at {self.url} ({reason}); start one with `jetspec serve`")
                    raise error
                final = result.get_response().parameters["triton_final_response"].bool_param
                if result.as_numpy("text_output") is not None:
                    yield _chunk(result)
                if final:
                    return
        finally:
            client.stop_stream(cancel_requests=True)
            client.close()

    def generate(self, prompt: str | list[int], options: Options = Options()) -> Chunk:
        """The whole answer as one chunk."""
        chunks = list(self.stream(prompt, options))
        whole = chunks[-1]
        whole.text = "".join(c.text for c in chunks)
        whole.ids = [i for c in chunks for i in c.ids]
        whole.log_probs = [p for c in chunks for p in c.log_probs]
        return whole


class _Answer(NamedTuple):
    result: grpcclient.InferResult | None
    error: InferenceServerException | None


def _input(name: str, kind: str, array: np.ndarray) -> grpcclient.InferInput:
    tensor = grpcclient.InferInput(name, list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


def _prompt(prompt: str | list[int]) -> list[grpcclient.InferInput]:
    if isinstance(prompt, str):
        return [_input("text_input", "BYTES", np.array([prompt.encode()], np.object_))]
    return [_input("input_ids", "INT32", np.array(prompt, np.int32))]


def _chunk(result: grpcclient.InferResult) -> Chunk:
    def value(name: str):
        return result.as_numpy(name).ravel()

    names = [name for name in OUTPUTS if name.startswith(("num_", "total_"))]
    return Chunk(
        text=value("text_output")[0].decode(),
        ids=value("output_ids").tolist(),
        log_probs=value("output_log_probs").tolist(),
        finish_reason=value("finish_reason")[0].decode(),
        seed=int(value("seed")[0]),
        counts={name: int(value(name)[0]) for name in names},
        accepted_by_depth=value("accepted_by_depth").tolist(),
    )
