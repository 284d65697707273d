"""What the loop reports. This base keeps nothing; the Triton backend publishes to the server's metrics endpoint.

Only the loop's thread calls these methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .sequence import Sequence


class Metrics:
    def set_load(self, running: int, waiting: int) -> None:
        """Sequences in slots and in the queue."""

    def observe_round(self, rows: int, drafted: int, step_seconds: float, host_seconds: float) -> None:
        """One step of the engines and the loop's own work around it."""

    def observe_emitted(self, sequence: Sequence, tokens: int, drafted: int, accepted: int) -> None:
        """What one round gave one sequence."""

    def observe_finished(self, sequence: Sequence, reason: str) -> None:
        """A sequence left its slot: "stop", "length", "cancelled" or "error"."""
