"""What happens when the server is told to go, and when a model's process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from jetspec_client import Client, Options, ServerUnavailable
from jetspec_client.local_server import ServerError, free_port
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


def test_stopping_is_quick_after_many_streams_at_once():
    """Triton may keep `jetspec` loaded although nothing runs; the drain must not wait its whole time for that."""
    with start_server() as server:
        client = Client(server.grpc_url, timeout_s=60)
        with ThreadPoolExecutor(12) as pool:
            asked = [
                pool.submit(client.generate, "Tell me a story.", Options(max_tokens=12, end_id=-1)) for _ in range(36)
            ]
            assert all(len(one.result().ids) == 12 for one in asked)
        started = time.monotonic()
        server.drain()
        server.stop(drain=False)
        assert time.monotonic() - started < 15


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


@contextmanager
def serving() -> Iterator[tuple[subprocess.Popen, Client]]:
    """`jetspec serve` as a user runs it, on free ports."""
    ports = {name: str(free_port()) for name in ("http", "grpc", "metrics")}
    options = [word for name, port in ports.items() for word in (f"--{name}-port", port)]
    command = [sys.executable, "-m", "jetspec_client.cli", "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert any(line.startswith("ready:") for line in process.stdout)
        yield process, Client(f"127.0.0.1:{ports['grpc']}", timeout_s=60)
    finally:
        process.kill()
        process.wait()


def test_serve_stops_when_a_model_process_dies_and_no_stream_hangs():
    with serving() as (process, client):
        stream = client.stream("Tell me a story.", Options(max_tokens=1500, end_id=-1))
        next(stream)
        os.kill(_stub("jetspec", f"/proc/{process.pid}"), signal.SIGKILL)
        with pytest.raises((InferenceServerException, ServerUnavailable)):
            list(stream)
        assert process.wait(30) == 1
        assert "the process of model jetspec" in process.stdout.read()
        assert not _children_servers(client)


def test_a_second_interrupt_ends_at_once_and_leaves_nothing():
    with serving() as (process, client):
        stream = client.stream("Tell me a story.", Options(max_tokens=1500, end_id=-1))
        next(stream)
        process.send_signal(signal.SIGINT)
        assert any("Ctrl-C again" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.wait(20)
        with pytest.raises((InferenceServerException, ServerUnavailable)):
            list(stream)
        assert not _children_servers(client)


def test_a_taken_port_is_told_before_anything_loads(server):
    from jetspec_client.local_server import LocalServer

    root = Path(__file__).parents[2]
    with pytest.raises(ServerError, match=f"port {server.grpc_port} cannot be used.*--grpc-port"):
        LocalServer(root / "model_repository", root / "backends", grpc_port=server.grpc_port)


def _children_servers(client: Client) -> list[str]:
    """Command lines of Triton processes on the client's port."""
    port = client.url.rpartition(":")[2]
    return [line for line in _command_lines().values() if f"--grpc-port={port}" in line]


def _command_lines() -> dict[int, str]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
    return found


def _stub(model: str, serve: str) -> int:
    """The process of `model` under the Triton server that the process at `serve` started."""
    triton = {int(pid) for task in Path(serve, "task").iterdir() for pid in (task / "children").read_text().split()}
    for pid, command in _command_lines().items():
        session = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
        if session in triton and "python_backend_stub" in command and f"/{model}/1/model.py" in command:
            return pid
    raise AssertionError(f"no process of {model} found")


def _stub_of(server, model: str) -> int:
    return next(pid for pid, name in server._stubs.items() if name == model)
