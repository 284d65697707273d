"""Bad input on the real server: a gRPC status, the value, the limit, one final flag, and the server goes on."""

from __future__ import annotations

import queue
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from jetspec_client import Options
from tritonclient.utils import InferenceServerException


def tensor(name: str, kind: str, values, dtype) -> grpcclient.InferInput:
    array = np.array(values, dtype)
    made = grpcclient.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def text(value: bytes = b"Hello") -> grpcclient.InferInput:
    return tensor("text_input", "BYTES", [value], np.object_)


INT, FLOAT, BOOL, BYTES = ("INT32", np.int32), ("FP32", np.float32), ("BOOL", np.bool_), ("BYTES", np.object_)


def one(name: str, value, kind) -> grpcclient.InferInput:
    return tensor(name, kind[0], [value], kind[1])


CASES = [
    ([], ["text_input", "input_ids"]),
    ([text(), tensor("input_ids", "INT32", [1, 2], np.int32)], ["text_input", "input_ids"]),
    ([text(b"")], ["0 tokens", "at least 1"]),
    ([text(b"\xff\xfe")], ["text_input", "UTF-8"]),
    ([tensor("input_ids", "INT32", [5, 49152], np.int32)], ["49152", "49151"]),
    ([tensor("input_ids", "INT32", [-1], np.int32)], ["-1", "49151"]),
    ([tensor("input_ids", "INT32", np.ones(2048), np.int32)], ["2048", "context"]),
    ([text(b"word " * 400_000)], ["2000000 bytes", "2048 tokens"]),
    ([text(), tensor("stop_words", "BYTES", [b"x"] * 65, np.object_)], ["65", "64"]),
    ([text(), one("end_id", 49152, INT)], ["end_id is 49152", "49151"]),
    ([text(), one("end_id", -2, INT)], ["end_id is -2", "-1 for none"]),
    ([tensor("input_ids", "INT32", [1, 2], np.int32), one("chat", True, BOOL)], ["chat", "input_ids"]),
    ([text(), one("max_tokens", 0, INT)], ["max_tokens is 0", "1"]),
    ([text(), one("max_tokens", 5000, INT)], ["5000", "2048"]),
    ([text(), one("temperature", -0.5, FLOAT)], ["temperature is -0.5", "100.0"]),
    ([text(), one("temperature", float("nan"), FLOAT)], ["temperature is nan"]),
    ([text(), one("top_p", 1.5, FLOAT)], ["top_p is 1.5", "1.0"]),
    ([text(), one("top_p", 0.0, FLOAT)], ["top_p is 0.0", "above 0"]),
    ([text(), one("top_k", -3, INT)], ["top_k is -3", "0"]),
    ([text(), one("draft_budget", 64, INT)], ["draft_budget is 64", "63"]),
    ([text(), one("beam_width", 4, INT)], ["beam_width", "4", "1"]),
    ([text(), one("repetition_penalty", 1.2, FLOAT)], ["repetition_penalty", "1.0"]),
    ([text(), one("max_tokens", 4, INT), one("min_tokens", 5, INT)], ["min_tokens is 5", "4"]),
    ([text(), one("return_context_logits", True, BOOL)], ["return_context_logits", "True"]),
    ([text(), one("bad_words", b"fox", BYTES)], ["bad_words", "fox"]),
    ([text(), one("stop_words", b"", BYTES)], ["stop_words", "empty"]),
    ([text(), tensor("max_tokens", "INT32", [1, 2], np.int32)], ["max_tokens"]),
]


def finals_of(url: str, inputs: list, model: str = "jetspec") -> tuple[int, list[str]]:
    """(responses with the final flag, error messages) of one streamed request."""
    answers: queue.Queue = queue.Queue()
    client = grpcclient.InferenceServerClient(url)
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer(model, inputs, enable_empty_final_response=True)
    finals, errors = 0, []
    wait = 60.0
    while True:
        try:
            result, error = answers.get(timeout=wait)
        except queue.Empty:
            break
        if error is not None:
            errors.append(str(error))
        if error is not None or result.get_response().parameters["triton_final_response"].bool_param:
            finals += 1
            wait = 0.3  # anything more would be a second end
    client.stop_stream()
    client.close()
    return finals, errors


@pytest.mark.parametrize("inputs,told", CASES, ids=[" ".join(told) for _, told in CASES])
def test_bad_input_is_refused_with_value_and_limit(server, inputs, told):
    finals, errors = finals_of(server.grpc_url, inputs)
    assert finals == 1 and len(errors) == 1
    assert all(word in errors[0] for word in told), errors[0]


def test_the_status_is_invalid_argument(client):
    with pytest.raises(InferenceServerException) as caught:
        client.generate("Hello", Options(temperature=-1.0))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "temperature is -1.0, valid is 0.0 to 100.0" in caught.value.message()


def test_a_good_request_has_one_final_flag_and_follows_bad_ones(server, client):
    finals, errors = finals_of(server.grpc_url, [text(), one("max_tokens", 5, INT), one("stream", True, BOOL)])
    assert (finals, errors) == (1, [])
    assert client.generate("Hello", Options(max_tokens=5)).counts["num_output_tokens"] == 5


def test_a_full_queue_answers_at_once(server, client):
    answers: queue.Queue = queue.Queue()
    raw = grpcclient.InferenceServerClient(server.grpc_url)
    raw.start_stream(lambda result, error: answers.put(error))
    for _ in range(90):  # 8 slots and a queue of 64
        raw.async_stream_infer("jetspec", [text(b"Once"), one("max_tokens", 1500, INT), one("end_id", -1, INT)])
    refused: list[str] = []
    while len(refused) < 10:
        error = answers.get(timeout=30)
        if error is not None:
            refused.append(str(error))
    with pytest.raises(InferenceServerException) as caught:
        client.generate("Hello", Options(max_tokens=3))
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    raw.stop_stream(cancel_requests=True)
    raw.close()
    assert all("64 requests wait, the limit is 64" in message for message in refused), refused[0]
    time.sleep(0.5)  # the cancels travel
    assert client.generate("Hello", Options(max_tokens=3)).counts["num_output_tokens"] == 3
