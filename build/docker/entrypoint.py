"""Start Triton in the container, in the foreground; on SIGTERM let running streams end first, as `jetspec serve` does."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from jetspec_client.local_server import EXIT_S, GRACE_S, MODELS, LocalServer, ServerError

CONTROL_HEADER = "jetspec-control"  # without its value nobody outside may load or unload a model


class ContainerServer(LocalServer):
    """The image's own `tritonserver`, reachable from outside, logging to this process's output."""

    def __init__(self, binary: Path, repository: Path, http_port: int, grpc_port: int, metrics_port: int):
        self.http_port, self.grpc_port, self.metrics_port = http_port, grpc_port, metrics_port
        self._home = Path(tempfile.mkdtemp(prefix="jetspec-"))
        self._shm_prefix = f"jetspec-{secrets.token_hex(4)}-"
        self._secret, self._stubs = secrets.token_hex(16), {}
        restricted = f"model-repository:{CONTROL_HEADER}={self._secret}"
        self._process = subprocess.Popen(
            [
                str(binary),
                f"--model-repository={repository}",
                f"--http-port={http_port}",
                f"--grpc-port={grpc_port}",
                f"--metrics-port={metrics_port}",
                f"--http-restricted-api={restricted}",
                f"--grpc-restricted-protocol={restricted}",
                "--disable-auto-complete-config",
                "--model-control-mode=explicit",
                *(f"--load-model={name}" for name in MODELS),
                f"--exit-timeout-secs={EXIT_S}",
                f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            ],
            env={**os.environ, "TMPDIR": str(self._home)},
            start_new_session=True,
        )

    def wait_ready(self, timeout_s: float = 1800) -> ContainerServer:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise ServerError(f"tritonserver exited with {code}; its log is above")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/health/ready", timeout=2):
                    self._stubs = self._find_stubs()
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise ServerError(f"the server was not ready within {timeout_s:.0f} s; its log is above")

    def _post(self, path: str) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}{path}", b"{}", {CONTROL_HEADER: self._secret}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=GRACE_S) as answer:
            return answer.read()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-repository", type=Path, required=True)
    parser.add_argument("--tritonserver", type=Path, default=Path("/opt/tritonserver/bin/tritonserver"))
    parser.add_argument("--http-port", type=int, default=8000)
    parser.add_argument("--grpc-port", type=int, default=8001)
    parser.add_argument("--metrics-port", type=int, default=8002)
    args = parser.parse_args(argv)
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop_signal, signal.default_int_handler)
    server = ContainerServer(
        args.tritonserver, args.model_repository, args.http_port, args.grpc_port, args.metrics_port
    )
    try:
        server.wait_ready()
        print(f"jetspec: {server.watch()}; stopping", file=sys.stderr, flush=True)
        return 1
    except ServerError as error:
        print(f"jetspec: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("jetspec: stopping, running streams may finish", file=sys.stderr, flush=True)
        return 0 if server.stop() == 0 else 1
    finally:
        server.stop(drain=False)


if __name__ == "__main__":
    sys.exit(main())
