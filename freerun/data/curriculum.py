"""A curriculum by measured pass rate: prompts that currently teach nothing rest, and are tried again later.

The order of the stream does not change. A prompt whose last group was solved too rarely or too often is passed
over at its next visits, then used again. Nothing is dropped for good: every visit shortens the rest, so a
stream in which all prompts rest recovers by itself. The saved state is which prompts rest, and for how long.
"""

from collections.abc import Mapping

NUM_VISITS_RESTED = 2


class Curriculum:
    """Tracks which prompts rest; with the default band, none does."""

    def __init__(
        self, *, min_pass_rate: float = 0.0, max_pass_rate: float = 1.0, resting: Mapping[str, int] | None = None
    ) -> None:
        self._min_pass_rate = min_pass_rate
        self._max_pass_rate = max_pass_rate
        self._resting = dict(resting or {})

    @property
    def resting(self) -> dict[str, int]:
        """Number of visits for which each resting prompt, by key, is still passed over."""
        return dict(self._resting)

    def note(self, key: str, pass_rate: float) -> None:
        if not self._min_pass_rate <= pass_rate <= self._max_pass_rate:
            self._resting[key] = NUM_VISITS_RESTED

    def passes_over(self, key: str) -> bool:
        """Whether this visit of the prompt is passed over; the call counts as a visit."""
        visits = self._resting.get(key, 0)
        if visits > 1:
            self._resting[key] = visits - 1
        elif visits == 1:
            del self._resting[key]
        return visits > 0
