"""One engine's counters over a run, in which its process may be replaced."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from freerun.types import EngineStats

WINDOW_SECONDS = 15.0
NUM_MARKS = 64
MIN_RATE_SECONDS = 2.0
"""Engines report twice a second: over a shorter time a rate says little."""


@dataclass
class EngineTrack:
    """One engine's counters, which keep growing when its process is replaced."""

    latest: EngineStats = field(default_factory=EngineStats)
    earlier: Counter[str] = field(default_factory=Counter)
    """Counts of the processes that died."""
    window: deque[tuple[float, float, float]] = field(default_factory=deque)
    """(seconds, tokens, busy seconds) of the last reports."""
    first: tuple[float, float, float] | None = None
    reported: float = 0.0
    """When the latest counters came."""
    loaded_version: int | None = None
    """Version according to its newest message, a report or a load."""

    def report(self, seconds: float, stats: EngineStats) -> None:
        if stats.num_steps < self.latest.num_steps:
            for name in ("num_tokens", "busy_seconds", "num_interrupts", "num_loads", "load_seconds",
                         "num_recomputed_tokens"):  # fmt: skip
                self.earlier[name] += getattr(self.latest, name)
            self.window.clear()
        self.latest, self.reported, self.loaded_version = stats, seconds, stats.version
        point = (seconds, self.total("num_tokens"), self.total("busy_seconds"))
        if stats.version is not None:  # before its first weights an engine has nothing to generate with
            self.first = self.first or point
        self.window.append(point)
        while len(self.window) > 2 and self.window[0][0] < seconds - WINDOW_SECONDS:
            self.window.popleft()

    def total(self, name: str) -> float:
        """A counter of `EngineStats` over the whole run."""
        return float(getattr(self.latest, name) + self.earlier[name])

    @property
    def tokens_per_second(self) -> float | None:
        return _slope([(seconds, tokens) for seconds, tokens, _ in self.window])

    @property
    def recent_busy_share(self) -> float | None:
        return _busy_share(self.window)

    @property
    def busy_share(self) -> float | None:
        """Share of the time since it had weights that the engine was computing."""
        return None if self.first is None else _busy_share((self.first, self.window[-1]))


class TokenMarks:
    """Tokens sampled until each step: their rate over a step does not depend on what happens at its end."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=NUM_MARKS)

    def begin(self, seconds: float, num_tokens: float) -> None:
        """Engines can generate from now on; only the first call counts."""
        if not self._marks:
            self.note(seconds, num_tokens)

    def note(self, seconds: float, num_tokens: float) -> None:
        self._marks.append((seconds, num_tokens))

    @property
    def tokens_per_second(self) -> float | None:
        """Over the last step, or the last few if it was shorter than a few reports are apart."""
        end = self._marks[-1][0] if self._marks else 0.0
        late = [index for index, mark in enumerate(self._marks) if end - mark[0] < MIN_RATE_SECONDS]
        return _slope(list(self._marks)[max(0, min(late, default=0) - 1) :])


def _busy_share(points: Iterable[tuple[float, float, float]]) -> float | None:
    share = _slope([(seconds, busy) for seconds, _, busy in points])
    return None if share is None else min(1.0, share)


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Slope per second between the first and the last point; None if undefined."""
    if not points or points[-1][0] <= points[0][0]:
        return None
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
