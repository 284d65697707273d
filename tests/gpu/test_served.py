"""GPU engines from `jetspec build` to a running server: GPU instances, hidden states that cross the models by DLPack."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from jetspec_client import Client, Options
from jetspec_client.cli import main
from jetspec_client.local_server import LocalServer

from .conftest import HEAD, ROOT
from .texts import PROMPTS, TOKENS, shared_prefix


@pytest.fixture(scope="module", params=["tensorrt", "tensorrt_llm"])
def client(request, tensorrt, demo_model, tmp_path_factory) -> Iterator[Client]:
    target = demo_model
    if request.param == "tensorrt_llm":
        if importlib.util.find_spec("tensorrt_llm") is None:
            pytest.skip("tensorrt_llm is not installed")
        target = tmp_path_factory.mktemp("half") / "target"
        _save_in_half_precision(demo_model, target)
    out = tmp_path_factory.mktemp(request.param)
    command = ["build", "--engine", request.param, "--target", str(target), "--head", str(HEAD), "--out", str(out)]
    assert main([*command, "--slots", "8", "--context", "512", "--rows-per-step", "64"]) == 0
    with LocalServer(out / "model_repository", ROOT / "backends") as server:
        server.wait_ready()
        yield Client(server.grpc_url, timeout_s=300)


def _save_in_half_precision(source, destination) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(destination)
    AutoTokenizer.from_pretrained(source).save_pretrained(destination)


def test_drafts_are_accepted_and_keep_the_text(client, record_property):
    """In half precision the share of equal ids is recorded, not assumed; see test_tensorrt.py."""
    plain = [client.generate(p, Options(max_tokens=TOKENS, end_id=-1, speculate=False)) for p in PROMPTS]
    drafted = [client.generate(p, Options(max_tokens=TOKENS, end_id=-1)) for p in PROMPTS]
    assert sum(answer.counts["total_accepted_draft_tokens"] for answer in drafted) > len(PROMPTS)
    share = shared_prefix([a.ids for a in plain], [a.ids for a in drafted])
    record_property("ids_equal_to_plain", round(share, 3))
    assert share > 0.5
