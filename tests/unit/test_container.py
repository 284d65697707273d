"""The container recipe, as far as it can be checked without a Docker daemon, and its entry point with a stand-in server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from jetspec_client.local_server import free_port
from jetspec_triton.targets.tensorrt_llm_api import IMAGE, SUPPORTED

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "build" / "docker" / "Dockerfile"


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest) of every logical line."""
    text = re.sub(r"^\s*#.*\n", "", RECIPE.read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.strip().split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def of(instructions, name: str) -> list[str]:
    return [rest for word, rest in instructions if word == name]


def test_the_base_is_pinned_to_the_image_of_the_supported_release(instructions):
    assert of(instructions, "FROM") == [IMAGE]
    assert re.search(r":\d\d\.\d\d-trtllm-python-py3$", IMAGE)
    assert SUPPORTED in RECIPE.read_text()


def test_it_does_not_run_as_root(instructions):
    words = [word for word, _ in instructions]
    (user,) = of(instructions, "USER")
    assert user.split(":")[0] not in ("root", "0")
    assert not {"RUN", "COPY", "ADD"} & set(words[words.index("USER") :]), "nothing is written as the server's own user"


def test_nothing_secret_or_unpinned_is_in_it(instructions):
    assert not of(instructions, "ADD") and not of(instructions, "ARG") and not of(instructions, "ENV")
    text = RECIPE.read_text()
    assert not re.search(r"(?i)token|password|secret|api[_-]?key|--extra-index-url|https?://(?!127\.0\.0\.1)", text)
    installs = re.findall(r"pip install ([^&]*)", " ".join(of(instructions, "RUN")))
    assert len(installs) == 2 and all(install.split()[-1] == "/tmp/jetspec" for install in installs)
    assert all("--no-deps" in install or "--constraint /tmp/jetspec/constraints.txt" in install for install in installs)


def test_what_is_copied_exists_and_is_no_model(instructions):
    for line in of(instructions, "COPY"):
        *sources, _ = line.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert not re.search(r"models|engines$|heads|\.safetensors|\.onnx|\.plan", source)
    assert of(instructions, "VOLUME") == ['["/serving"]']


def test_health_stopping_and_entry_point(instructions):
    assert of(instructions, "STOPSIGNAL") == ["SIGTERM"]
    assert "/v2/health/ready" in of(instructions, "HEALTHCHECK")[0]
    for name in ("ENTRYPOINT", "CMD"):  # a list: a shell would keep the signal to itself
        assert all(isinstance(word, str) for word in json.loads(of(instructions, name)[0]))
    copied = [line.split() for line in of(instructions, "COPY")]
    assert ["build/docker/entrypoint.py", json.loads(of(instructions, "ENTRYPOINT")[0])[1]] in copied


STAND_IN = '''#!{python}
"""Answers like tritonserver, writes down what it is asked, and says how it ended."""
import json, signal, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
secret = options["http-restricted-api"].split("=", 1)[1]
unloaded, log = set(), open("{log}", "a", buffering=1)

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"jetspec_running_requests 0\\njetspec_waiting_requests 0\\n")
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        allowed = self.headers.get("jetspec-control") == secret
        print("POST", self.path, "allowed" if allowed else "refused", file=log)
        if self.path.endswith("/unload") and allowed:
            unloaded.add(self.path.split("/")[-2])
        index = [{{"name": n, "reason": "unloaded" if n in unloaded else ""}} for n in ("jetspec", "ensemble")]
        self.answer(json.dumps(index).encode(), 200 if allowed else 403)
    def answer(self, body, code=200):
        self.send_response(code); self.end_headers(); self.wfile.write(body)
    def log_message(self, *args): pass

def stop(*_):
    print("SIGTERM after", sorted(unloaded), file=log); threading.Thread(target=lambda: [s.shutdown() for s in servers]).start()

servers = [HTTPServer(("127.0.0.1", int(options[name])), Handler) for name in ("http-port", "metrics-port")]
signal.signal(signal.SIGTERM, stop)
threads = [threading.Thread(target=s.serve_forever) for s in servers]
[t.start() for t in threads]; [t.join() for t in threads]
'''


@pytest.fixture
def started(tmp_path):
    """(the entry point's process, its HTTP port, what the stand-in wrote)"""
    log, binary, ports = tmp_path / "log", tmp_path / "tritonserver", [free_port() for _ in range(3)]
    binary.write_text(STAND_IN.format(python=sys.executable, log=log))
    binary.chmod(0o755)
    flags = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports)]
    command = [sys.executable, str(RECIPE.parent / "entrypoint.py"), f"--model-repository={tmp_path}", *flags]
    process = subprocess.Popen([*command, f"--tritonserver={binary}"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/v2/health/ready", timeout=1).close()
            break
        except OSError:
            time.sleep(0.05)
    time.sleep(0.5)  # the entry point polls too
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    yield process, ports[0], log
    process.kill()
    process.wait()
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)


def test_sigterm_unloads_the_outer_models_before_the_server_ends(started):
    process, _, log = started
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    told = log.read_text()
    assert told.index("ensemble/unload allowed") < told.index("jetspec/unload allowed") < told.index("SIGTERM after")
    assert "SIGTERM after ['ensemble', 'jetspec']" in told


def test_nobody_else_can_unload_a_model(started):
    _, port, log = started
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v2/repository/models/jetspec/unload", b"{}", method="POST"
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=5)
    assert "jetspec/unload refused" in log.read_text()


def test_a_server_that_dies_ends_the_container(started, tmp_path):
    process, _, _ = started
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    assert process.wait(20) == 1
    assert "ended with -9" in process.stderr.read()
