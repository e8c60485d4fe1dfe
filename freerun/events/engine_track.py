"""The counters of one engine over a run, in which its process may be replaced."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from freerun.types import EngineStats

WINDOW_SECONDS = 15.0
NUM_MARKS = 64
MIN_RATE_SECONDS = 2.0
"""Minimum time for a rate: engines report twice a second, so over a shorter time a rate is inaccurate."""


@dataclass
class EngineTrack:
    """One engine's counters, which continue to grow when its process is replaced."""

    latest: EngineStats = field(default_factory=EngineStats)
    earlier: Counter[str] = field(default_factory=Counter)
    """Counts of earlier processes, which have died."""
    window: deque[tuple[float, float, float]] = field(default_factory=deque)
    """(seconds, tokens, busy seconds) of the last reports."""
    first: tuple[float, float, float] | None = None
    reported: float = 0.0
    """Time of the latest counters."""
    loaded_version: int | None = None
    """Version according to the engine's newest message, a report or a load."""

    def report(self, seconds: float, stats: EngineStats) -> None:
        if stats.num_steps < self.latest.num_steps:
            for name in ("num_tokens", "busy_seconds", "num_interrupts", "num_loads", "load_seconds",
                         "num_recomputed_tokens"):  # fmt: skip
                self.earlier[name] += getattr(self.latest, name)
            self.window.clear()
        self.latest, self.reported, self.loaded_version = stats, seconds, stats.version
        point = (seconds, self.total("num_tokens"), self.total("busy_seconds"))
        if stats.version is not None:  # before its first weights an engine cannot generate
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
        """Share of the time since its first weights in which the engine was computing."""
        return None if self.first is None else _busy_share((self.first, self.window[-1]))


class TokenMarks:
    """Tokens sampled until each step, for a rate per step that does not depend on events near the step's end."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=NUM_MARKS)

    def begin(self, seconds: float, num_tokens: float) -> None:
        """Note that engines can generate from now on; only the first call counts."""
        if not self._marks:
            self.note(seconds, num_tokens)

    def note(self, seconds: float, num_tokens: float) -> None:
        self._marks.append((seconds, num_tokens))

    @property
    def tokens_per_second(self) -> float | None:
        """Rate over the last step, or over a few steps if it was shorter than a few reports."""
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
