"""Start the packaged Triton server on this machine: the demo, `jetspec serve` and the tests use it.

On production machines the same `model_repository/` and `backends/` run under NVIDIA's Triton container instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

MODELS = ("target", "draft", "jetspec_step", "jetspec", "ensemble")
GRACE_S = 30  # for running streams
EXIT_S = 5  # for Triton itself, once nothing runs
STACK_BYTES = 256 << 20  # Triton's HTTP front end overflows the usual 8 MB on a JSON body of 5 MB


class ServerError(RuntimeError):
    """The server did not start; the message holds the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LocalServer:
    """A `tritonserver` process in a session of its own. Use as a context manager, or call `stop`.

    repository, backends: the project's folders. Ports of 0 take free ones. `log`: a file, None for a temporary one.
    """

    def __init__(
        self,
        repository: Path,
        backends: Path,
        *,
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        log: Path | None = None,
    ):
        for name, port in (("http", http_port), ("grpc", grpc_port), ("metrics", metrics_port)):
            _require_free(name, port)
        self.http_port, self.grpc_port = http_port or free_port(), grpc_port or free_port()
        self.metrics_port = metrics_port or free_port()
        self._home = Path(tempfile.mkdtemp(prefix="jetspec-server-"))
        self.log = log or self._home / "server.log"
        self._shm_prefix = f"jetspec-{secrets.token_hex(4)}-"
        package = triton_package()
        triton = package / "tritonserver"
        _lay_out_backends(triton, backends, self._home / "backends")
        command = [
            str(triton / "bin" / "tritonserver"),
            f"--model-repository={Path(repository).resolve()}",
            f"--backend-directory={self._home / 'backends'}",
            f"--cache-directory={triton / 'caches'}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            "--allow-gpu-metrics=false",
            "--disable-auto-complete-config",
            "--model-control-mode=explicit",
            *(f"--load-model={name}" for name in MODELS),
            f"--exit-timeout-secs={EXIT_S}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            "--backend-config=python,thread-pool-size=2",
        ]
        with open(self.log, "wb") as sink:
            self._process = subprocess.Popen(
                command,
                env={**_environment(package), "TMPDIR": str(self._home)},
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_raise_stack_limit,
            )
        self._stubs: dict[int, str] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def wait_ready(self, timeout_s: float = 180) -> LocalServer:
        """Wait until every model answers. Raises `ServerError` when the server exits or the time is over."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise ServerError(f"tritonserver exited with {self._process.returncode}; {self._log_tail()}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/health/ready", timeout=2):
                    if b"jetspec is ready" in self.log.read_bytes():
                        self._stubs = self._find_stubs()
                        return self
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.1)
        raise ServerError(f"the server was not ready within {timeout_s:.0f} s; {self._log_tail()}")

    def resident_bytes(self) -> int:
        """Proportional set size of the server and its model processes: shared pages count once."""
        total = 0
        for pid in self._group():
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
        return total

    def watch(self) -> str:
        """Wait until the server or a model process ends by itself; what ended, in words.

        Triton neither restarts a killed model process nor stops reporting ready, and streams of a killed `jetspec` would wait
        for ever: whoever runs the server should stop it then, with `stop(drain=False)`.
        """
        while True:
            if (code := self._process.poll()) is not None:
                return f"tritonserver ended with {code}, a negative number is the signal that killed it"
            for pid, model in self._stubs.items():
                if not _is_alive(pid):
                    return f"the process of model {model} (pid {pid}) has died"
            time.sleep(0.5)

    def drain(self) -> None:
        """Refuse new requests and wait, up to the grace time, until running streams have ended.

        SIGTERM alone would break them: Triton then refuses the steps that running streams need. Unloading the outer
        models keeps the step available until the last stream is done.
        """
        deadline = time.monotonic() + GRACE_S
        for name in ("ensemble", "jetspec"):
            try:
                self._post(f"/v2/repository/models/{name}/unload")
            except (urllib.error.URLError, OSError):
                return  # not serving: nothing to drain
        idle_polls = 0
        while time.monotonic() < deadline and self._process.poll() is None:
            states = {m["name"]: m.get("reason") for m in json.loads(self._post("/v2/repository/index"))}
            idle_polls = idle_polls + 1 if self._idle() else 0
            if states.get("jetspec") == "unloaded" or idle_polls >= 5:
                return  # Triton 2.51 may keep a finished request's reference for ever: then idle has to do
            time.sleep(0.1)

    def stop(self, drain: bool = True) -> int:
        """Drain, SIGTERM, then end the whole group and remove what it left. The server's exit code.

        Ctrl-C during this skips the waiting, never the cleaning up.
        """
        group = self._group()
        try:
            if self._process.poll() is None and drain:
                self.drain()
                self._process.send_signal(signal.SIGTERM)
                self._process.wait(EXIT_S + 5)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            pass
        for pid in {*group, *self._group()}:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        code = self._process.wait()
        for leftover in Path("/dev/shm").glob(f"{self._shm_prefix}*"):
            leftover.unlink(missing_ok=True)
        shutil.rmtree(self._home / "backends" if code else self._home, ignore_errors=True)  # a failure keeps its log
        return code

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *exc) -> None:
        self.stop()

    def _idle(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=GRACE_S) as page:
            lines = page.read().decode().splitlines()
        loads = [line for line in lines if line.startswith(("jetspec_running_requests", "jetspec_waiting_requests"))]
        return all(float(line.rpartition(" ")[2]) == 0 for line in loads)

    def _find_stubs(self) -> dict[int, str]:
        """Model names by the pid of their process."""
        found = {}
        for pid in self._group():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if words[0].endswith("triton_python_backend_stub"):
                found[pid] = Path(words[1]).parents[1].name
        return found

    def _post(self, path: str) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}{path}", b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=GRACE_S) as answer:
            return answer.read()

    def _group(self) -> list[int]:
        """Processes of the server's session."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self._process.pid:
                    found.append(int(entry.name))
        return found

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("E") or "rror" in line] or lines
        return f"its log {self.log} ends with:\n" + "\n".join(told[-12:])


def _require_free(name: str, port: int) -> None:
    if port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise ServerError(
                    f"port {port} cannot be used ({error}); stop what uses it or give --{name}-port"
                ) from None


def _raise_stack_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def triton_package() -> Path:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError("the package nvidia-pytriton is not installed here; run `make setup` and use its .venv")
    return Path(spec.submodule_search_locations[0])


def _environment(package: Path) -> dict[str, str]:
    """The stub runs the first python3 on PATH and needs Python's own library and the wheel's bundled ones."""
    libraries = [sysconfig.get_config_var("LIBDIR"), str(package.parent / "nvidia_pytriton.libs")]
    if inherited := os.environ.get("LD_LIBRARY_PATH"):
        libraries.append(inherited)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def _lay_out_backends(triton: Path, ours: Path, out: Path) -> None:
    """Triton's Python backend (its library must be a real file, the stub must stay a link) beside our backends."""
    python = out / "python"
    python.mkdir(parents=True)
    source = triton / "backends" / "python"
    stub = triton / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    if not stub.is_dir():
        raise ServerError(f"no Python backend stub for Python {sys.version.split()[0]}; use Python 3.10 to 3.12")
    shutil.copy2(source / "libtriton_python.so", python)
    (python / "triton_python_backend_utils.py").symlink_to(source / "triton_python_backend_utils.py")
    (python / "triton_python_backend_stub").symlink_to(stub / "triton_python_backend_stub")
    for backend in sorted(Path(ours).resolve().iterdir()):
        if (backend / "model.py").is_file():
            shutil.copytree(backend, out / backend.name, ignore=shutil.ignore_patterns("__pycache__"))
