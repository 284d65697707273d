"""What happens when the server is told to go, and when a model's process is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from jetspec_client import Client, Options
from tritonclient.utils import InferenceServerException

from .conftest import start_server


def test_sigterm_lets_running_streams_finish_and_exits_0():
    server = start_server()
    client = Client(server.grpc_url, timeout_s=60)
    stream = client.stream("Tell me a story.", Options(max_tokens=60, end_id=-1))
    chunks = [next(stream)]
    codes: list[int] = []
    stopping = threading.Thread(target=lambda: codes.append(server.stop()))
    stopping.start()
    chunks += list(stream)
    stopping.join(60)
    assert sum(len(c.ids) for c in chunks) == 60 and chunks[-1].finish_reason == "length"
    assert codes == [0]


def test_a_killed_target_fails_requests_clearly_and_the_server_lives():
    with start_server() as server:
        client = Client(server.grpc_url, timeout_s=60)
        assert client.generate("Hello", Options(max_tokens=3)).ids
        stream = client.stream("Tell me a story.", Options(max_tokens=1000, end_id=-1))
        next(stream)
        os.kill(_stub_of(server, "target"), signal.SIGKILL)
        with pytest.raises(InferenceServerException) as running:
            list(stream)
        assert "target" in str(running.value) or "stub" in str(running.value).lower()
        started = time.monotonic()
        with pytest.raises(InferenceServerException):
            client.generate("Hello", Options(max_tokens=3))
        assert time.monotonic() - started < 20  # an answer, not a hang


def _stub_of(server, model: str) -> int:
    """The process whose command line names the model's backend."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if (
                "triton_python_backend_stub" in command
                and f"jetspec_{model}" in command
                and server._shm_prefix in command
            ):
                return int(entry.name)
    raise AssertionError(f"no process of {model} found")
