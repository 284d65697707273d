"""Building in parts: a finished part whose inputs and settings are unchanged is kept, so a stopped build goes on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jetspec_triton.errors import ConfigError

STATE = "parts.json"
LOCK = "build.lock"


@dataclass(frozen=True)
class Part:
    """Some files of an engine directory and what decides their contents.

    inputs: files that are read. settings: everything else that counts, in JSON types. files: names below the engine
    directory with their estimated sizes in bytes. write: makes them, given the directory. temporary: bytes on disk that it
    needs meanwhile, beside its files.
    """

    name: str
    inputs: tuple[Path, ...]
    settings: Mapping[str, object]
    files: Mapping[str, int]
    write: Callable[[Path], None]
    temporary: int = 0

    @property
    def size(self) -> int:
        """Bytes, estimated."""
        return sum(self.files.values())

    def digest(self, hashed: dict[Path, str]) -> str:
        """SHA-256 of the inputs and the settings. `hashed` remembers files that several parts read."""
        for path in self.inputs:
            if path not in hashed:
                hashed[path] = sha256_of([path])
        inputs = [hashed[path] for path in self.inputs]
        return hashlib.sha256(json.dumps([inputs, dict(self.settings)], sort_keys=True).encode()).hexdigest()


def build_parts(parts: list[Part], directory: Path, tell: Callable[[str], None]) -> dict[str, str]:
    """Write what is missing or outdated, one progress line a part. SHA-256 of every file by its name.

    Raises `ConfigError` while another build writes to the same directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process, however it ends
        except OSError:
            raise ConfigError(f"another build is writing to {directory}; wait for it or choose another --out") from None
        return _build_parts(parts, directory, tell)


def _build_parts(parts: list[Part], directory: Path, tell: Callable[[str], None]) -> dict[str, str]:
    state_file = directory / STATE
    state = _load(state_file)
    hashed: dict[Path, str] = {}
    inputs = {path for part in parts for path in part.inputs}
    tell(f"hashing the inputs, {size_text(sum(path.stat().st_size for path in inputs))} ...")
    for number, part in enumerate(parts, 1):
        label, inputs = f"[{number}/{len(parts)}] {part.name}:", part.digest(hashed)
        if _is_finished(state.get(part.name), inputs, directory):
            tell(f"{label} unchanged, kept")
            continue
        tell(f"{label} writing {size_text(part.size)} ...")
        started = time.monotonic()
        if state.pop(part.name, None):
            _save(state, state_file)
        part.write(directory)
        state[part.name] = {"inputs": inputs, "files": {name: sha256_of([directory / name]) for name in part.files}}
        _save(state, state_file)
        tell(f"{label} done after {time.monotonic() - started:.0f} s")
    return {name: digest for part in parts for name, digest in state[part.name]["files"].items()}


def sha256_of(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as source:
            while chunk := source.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def size_text(size: int) -> str:
    for limit, unit, digits in ((1e9, "GB", 1), (1e6, "MB", 1), (1e3, "KB", 0)):
        if size >= limit:
            return f"{size / limit:.{digits}f} {unit}"
    return f"{size} bytes"


def _is_finished(known: dict | None, inputs: str, directory: Path) -> bool:
    if known is None or known["inputs"] != inputs:
        return False
    return all((directory / n).is_file() and sha256_of([directory / n]) == d for n, d in known["files"].items())


def _load(file: Path) -> dict:
    """What `_save` wrote; nothing is known of parts whose state cannot be read, they are written again."""
    try:
        state = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _save(state: dict, file: Path) -> None:
    """In one step, so that a stopped build leaves the old state or the new one."""
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(state, indent=2) + "\n")
    os.replace(fresh, file)
