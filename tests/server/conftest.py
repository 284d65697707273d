"""The real Triton server with the real demo model, started once for all server tests."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from jetspec_client import Client
from jetspec_client.local_server import LocalServer

ROOT = Path(__file__).parents[2]


def start_server() -> LocalServer:
    return LocalServer(ROOT / "model_repository", ROOT / "backends").wait_ready()


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    with start_server() as running:
        yield running


@pytest.fixture
def client(server) -> Client:
    return Client(server.grpc_url, timeout_s=120)


def metric(server: LocalServer, name: str) -> float:
    """Sum over the labels of one metric."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        lines = page.read().decode().splitlines()
    values = [float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + "{", name + " "))]
    assert values, f"{name} is not published"
    return sum(values)
