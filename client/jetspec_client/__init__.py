"""Client of the JetSpec models on a Triton server."""

from .client import Chunk, Client, Options, ServerUnavailable

__all__ = ["Chunk", "Client", "Options", "ServerUnavailable"]
