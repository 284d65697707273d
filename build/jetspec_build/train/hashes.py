"""What a cached text or corpus belongs to, as a hash."""

from __future__ import annotations

import hashlib
from pathlib import Path


def checkpoint_hash(directory: Path) -> str:
    """SHA-256 of a checkpoint directory's configuration and weights."""
    digest = hashlib.sha256()
    for file in [Path(directory) / "config.json", *sorted(Path(directory).glob("*.safetensors"))]:
        with file.open("rb") as stream:
            while part := stream.read(1 << 24):
                digest.update(part)
    return digest.hexdigest()
