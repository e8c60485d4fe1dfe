"""Occupancy: the time-averaged share of the engines' slots in which a sample is decoded.

The controller counts the requests that engines have not answered. If there are more requests than slots, all slots
are full.
"""

from collections.abc import Callable


class Occupancy:
    """Call `note` whenever the number of samples or slots has changed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._num_decoded = 0
        self._num_slots = 0
        self._decoded_seconds = 0.0
        self._slot_seconds = 0.0

    def note(self, num_samples: int, num_slots: int) -> None:
        """Record how many samples the engines hold from now on, and how many slots there are."""
        num_decoded = min(num_samples, num_slots)
        if (num_decoded, num_slots) != (self._num_decoded, self._num_slots):  # often all slots stay full
            self._add_up()
            self._num_decoded, self._num_slots = num_decoded, num_slots

    def since_last(self) -> float | None:
        """The occupancy since the last call; None if there were no slots in that time."""
        self._add_up()
        share = self._decoded_seconds / self._slot_seconds if self._slot_seconds else None
        self._decoded_seconds = self._slot_seconds = 0.0
        return share

    def _add_up(self) -> None:
        now = self._clock()
        self._decoded_seconds += (now - self._since) * self._num_decoded
        self._slot_seconds += (now - self._since) * self._num_slots
        self._since = now
