"""Run perf_analyzer (bundled with tritonclient) or genai-perf with the libraries they look for."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from .local_server import ServerError, triton_package

LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


def exec_tool(command: list[str]) -> None:
    """Replace this process by `command`. Raises `ServerError` when the program is not found."""
    bundled = triton_package().parent / "nvidia_pytriton.libs"
    folder = Path(tempfile.mkdtemp(prefix="jetspec-libs-"))
    for name, pattern in LIBRARIES.items():
        (folder / name).symlink_to(next(bundled.glob(pattern)))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = shutil.which(command[0], path=path)
    if program is None:
        raise ServerError(f"{command[0]} is not installed; see the README's section on measuring")
    libraries = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    os.execve(program, command, {**os.environ, "PATH": path, "LD_LIBRARY_PATH": libraries})
