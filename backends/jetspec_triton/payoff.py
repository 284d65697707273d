"""Whether the draft head pays for one sequence: tokens per second of its rounds with the head against those without.

The head's forward costs time in every round that it proposes for, whatever is accepted. A sequence whose head is often wrong
stops asking it, decodes on (with what the look-up drafts), and tries again after a while.
"""

from __future__ import annotations

_DECAY = 0.9  # of a round's weight with each later round of its kind
_TRIAL = 12  # rounds before a kind is judged
_MARGIN = 0.98  # the head is left for a gain above 2 %
_PAUSE, _LONGEST_PAUSE = 24, 384  # rounds without the head before it is tried again; doubled when it fails again


class Payoff:
    def __init__(self):
        self.on = True  # ask the head for the next round
        self._tokens, self._seconds = [0.0, 0.0], [0.0, 0.0]  # without the head, with it
        self._rounds, self._pause = 0, _PAUSE

    def observe(self, tokens: int, seconds: float, plain_seconds: float, drafted: bool) -> None:
        """One round of the sequence: its tokens, its share of the cost, and what plain decoding would have cost it.

        drafted: whether the head proposed for it.
        """
        if drafted != self.on:  # the first rounds after a change still carry the former proposal
            return
        kind = int(drafted)
        self._tokens[kind] = _DECAY * self._tokens[kind] + tokens
        self._seconds[kind] = _DECAY * self._seconds[kind] + seconds
        self._rounds += 1
        if not self.on:
            if self._rounds >= self._pause:
                self._switch(True)
        elif self._rounds >= _TRIAL:
            rate = self._tokens[1] / max(self._seconds[1], 1e-12)
            without = 1 / max(plain_seconds, 1e-12)
            if self._seconds[0]:
                without = max(without, self._tokens[0] / self._seconds[0])
            if rate < _MARGIN * without:
                self._switch(False)
            else:
                self._pause = _PAUSE

    def _switch(self, on: bool) -> None:
        if on:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self.on, self._rounds = on, 0
        self._tokens[int(on)] = self._seconds[int(on)] = 0.0
