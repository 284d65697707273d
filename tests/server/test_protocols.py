"""The other doors: HTTP generate and generate_stream, TensorRT-LLM's ensemble name and tensors, metrics."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from jetspec_client import Client, Options

from .conftest import metric
from .test_refusals import BOOL, INT, finals_of, one, text


def post(server, path: str, body: dict) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def expected(server) -> str:
    return Client(server.grpc_url).generate("The capital of France is", Options(max_tokens=12)).text


@pytest.mark.parametrize("model", ["jetspec", "ensemble"])
def test_http_generate_stream(server, expected, model):
    body = {"text_input": "The capital of France is", "max_tokens": 12, "stream": True}
    lines = post(server, f"/v2/models/{model}/generate_stream", body).splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert "".join(event.get("text_output", "") for event in events) == expected
    assert len(events) > 1


@pytest.mark.parametrize("model", ["jetspec", "ensemble"])
def test_http_generate_gives_one_response(server, expected, model):
    body = {"text_input": "The capital of France is", "max_tokens": 12}
    assert json.loads(post(server, f"/v2/models/{model}/generate", body))["text_output"] == expected


def test_a_huge_http_body_is_refused_and_the_server_lives(server, expected):
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, "/v2/models/jetspec/generate", {"text_input": "a" * 5_000_000})
    assert caught.value.code == 400 and b"5000000 bytes" in caught.value.read()
    body = {"text_input": "The capital of France is", "max_tokens": 12}
    assert json.loads(post(server, "/v2/models/jetspec/generate", body))["text_output"] == expected


def test_ensemble_takes_tensorrt_llm_tensors(server):
    inputs = [text(), one("max_tokens", 6, INT), one("stream", True, BOOL), one("beam_width", 1, INT),
              one("return_log_probs", True, BOOL), one("pad_id", 2, INT)]  # fmt: skip
    assert finals_of(server.grpc_url, inputs, "ensemble") == (1, [])


def test_models_are_described(server):
    client = grpcclient.InferenceServerClient(server.grpc_url)
    assert {m.name for m in client.get_model_repository_index().models} >= {"jetspec", "ensemble", "jetspec_step"}
    step = client.get_model_metadata("jetspec_step")
    assert "features" not in [o.name for o in step.outputs]  # hidden states stay between target and draft head


def test_metrics_count_what_was_served(server, client):
    before = metric(server, "jetspec_emitted_tokens_total")
    got = client.generate("one two three one two three one two", Options(max_tokens=32, end_id=-1))
    assert metric(server, "jetspec_emitted_tokens_total") == before + 32
    assert got.counts["total_accepted_draft_tokens"] == sum(got.accepted_by_depth)
    assert metric(server, "jetspec_rows_total") > 0 and metric(server, "jetspec_waiting_requests") == 0


def test_unary_request_on_the_step_is_what_the_loop_sends(server):
    """The ensemble and a step in this process give the same tokens."""
    from pathlib import Path

    from jetspec_triton.engines import open_step
    from jetspec_triton.step import StepBatch, StepResult

    root = Path(__file__).parents[2]
    prompt = np.array([19556, 665, 28, 638, 359, 346], np.int32)
    first = StepBatch(*_batch(7, 0, prompt, n_forced=6))
    here = open_step(root / "engines" / "smollm2-135m-instruct")
    local = here.run(first)
    anchor, guess = int(local.emitted[-1]), local.draft_ids[0, :, 0]
    second = StepBatch(*_batch(7, 6, np.array([anchor, *guess[:3]], np.int32), n_forced=1))
    for batch, local in ((first, local), (second, here.run(second))):
        remote = _infer_step(server, batch)
        for name in StepResult._fields:
            np.testing.assert_allclose(remote[name], getattr(local, name), atol=1e-3, err_msg=name)


def _batch(slot: int, length: int, tokens: np.ndarray, n_forced: int) -> list[np.ndarray]:
    count = len(tokens)
    ints = [[slot], [length], [0, count], tokens, np.arange(count) - 1, [n_forced], [1]]
    rest = [np.zeros(1, np.float32), np.zeros(1, np.int32), np.ones(1, np.float32), np.zeros(1, np.uint64)]
    rest += [np.ones(1, np.int32), np.zeros(0, np.int32), np.zeros(2, np.int32), np.zeros(1, np.int32)]
    return [np.asarray(a, np.int32) for a in ints] + rest


def _infer_step(server, batch) -> dict[str, np.ndarray]:
    kinds = {np.dtype(np.int32): "INT32", np.dtype(np.float32): "FP32", np.dtype(np.uint64): "UINT64"}
    inputs = []
    for name, array in batch._asdict().items():
        made = grpcclient.InferInput(name, list(array.shape), kinds[array.dtype])
        made.set_data_from_numpy(array)
        inputs.append(made)
    result = grpcclient.InferenceServerClient(server.grpc_url).infer("jetspec_step", inputs)
    names = ("emitted", "emitted_splits", "log_probs", "draft_ids", "draft_log_probs")
    return {name: result.as_numpy(name) for name in names}
