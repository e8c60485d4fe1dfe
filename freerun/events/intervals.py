"""How each process spent its time, as intervals without gaps, derived from the events of a run.

    engines    decoding, recomputing, evaluating, loading, waiting, other      from their reports, twice a second
    trainer    rating, proximal, reference, training, updating, publishing, saving,
               loading (engines still read the weights it would overwrite), waiting, other        from its steps
    graders    grading, waiting                                                from their reports
    all        starting, unknown

A stretch says which share of it each activity took; the shares add up to 1, so those of any window do. `other`
is time spent on messages; `unknown` is time that no event covers. Between its last report and now, a process is
assumed to do what it last announced (`Activity`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from freerun.events.events import (
    Activity,
    EngineReport,
    GraderReport,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)

if TYPE_CHECKING:
    from freerun.events.metrics import RunState

TRAINER = "trainer"
BETWEEN_STEPS = ("publishing", "saving")
"""Phases of the trainer after a step, while the controller already shows it as waiting for the next one."""
_ENGINE_SECONDS = {
    "decoding": "decode_seconds",
    "recomputing": "recompute_seconds",
    "evaluating": "evaluate_seconds",
    "loading": "load_seconds",
    "waiting": "idle_seconds",
}
_OF_STATE = {
    "generating": "decoding",
    "evaluating": "evaluating",
    "grading": "grading",
    "training": "training",
    "loading": "loading",
    "waiting": "waiting",
    "idle": "waiting",
    "starting": "starting",
    "restarting": "starting",
}
"""What a process with this announced state does; other states are unknown."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """An interval of one process, with the share of each activity."""

    begin: float
    end: float
    parts: dict[str, float]
    """Shares by activity, in the order within a step; they add up to 1."""

    @property
    def laid_out(self) -> Iterator[tuple[str, float, float]]:
        """The activities one after the other, as (name, begin, end)."""
        begin = self.begin
        for activity, share in self.parts.items():
            end = begin + share * (self.end - self.begin)
            yield activity, begin, end
            begin = end


class _Track:
    """One process: its activities up to `since`, and its announced state from then on."""

    def __init__(self, since: float, keep_seconds: float) -> None:
        self.stretches: deque[Stretch] = deque()
        self.since = since
        self.counters: Mapping[str, float] | None = None
        """Counters of its last report; None before the first report of a process."""
        self._said: list[tuple[float, str]] = [(since, "starting")]
        self._keep_seconds = keep_seconds

    def say(self, seconds: float, activity: str) -> None:
        """Record an announced state, which holds until something better is known."""
        self._said.append((max(seconds, self.since), activity))

    def end_saying(self, activity: str, seconds: float) -> None:
        """Record that the process waits from now on, if `activity` is its announced state."""
        if self._said[-1][1] == activity:
            self.say(seconds, "waiting")

    def cover(self, end: float, seconds: Mapping[str, float], *, rest: str = "other") -> None:
        """Add the interval up to `end`: these activities, and `rest` for the time they do not cover."""
        if end <= self.since:
            return
        length = end - self.since
        known = {name: max(0.0, value) for name, value in seconds.items()}
        total = max(length, sum(known.values()))
        known[rest] = known.get(rest, 0.0) + total - sum(known.values())
        self._append(Stretch(begin=self.since, end=end, parts=_shares_of(known)))

    def fill(self, end: float) -> None:
        """Add the interval up to `end` with the announced state."""
        for stretch in list(self.open_stretches(end)):
            self._append(stretch)

    def open_stretches(self, end: float) -> Iterator[Stretch]:
        """The interval from the last known time to `end`, with the announced state."""
        begin = self.since
        followed_by = [*(seconds for seconds, _ in self._said[1:]), math.inf]
        for (_, activity), until in zip(self._said, followed_by, strict=True):
            if (stop := min(until, end)) > begin:
                yield Stretch(begin=begin, end=stop, parts={activity: 1.0})
                begin = stop

    def restart(self, seconds: float, *, rewinds: bool = False) -> None:
        """Start again for a new process, which may begin at an earlier time."""
        if not rewinds:
            self.fill(seconds)
        while self.stretches and self.stretches[-1].end > seconds:
            self.stretches.pop()
        self.since, self.counters, self._said = seconds, None, [(seconds, "starting")]

    def report(self, seconds: float, counters: Mapping[str, float], *, up_seconds: float) -> None:
        """Add the time since the last report, or since the start, from the growth of the counters."""
        before = self.counters
        if before is None or up_seconds < before["up"]:
            before = dict.fromkeys(counters, 0.0) | {"up": 0.0}
            self.fill(min(seconds, max(self.since, seconds - up_seconds)))
        grown = {name: value - before[name] for name, value in counters.items()}
        up = up_seconds - before["up"]
        self.counters = {**counters, "up": up_seconds}
        if up <= 0:  # unknown: an engine of another freerun version
            self.fill(seconds)
            return
        # The process's clock and ours agree only roughly, so only the shares count.
        scale = (seconds - self.since) / max(up, sum(grown.values()))
        self.cover(seconds, {name: scale * value for name, value in grown.items()})

    def _append(self, stretch: Stretch) -> None:
        self.stretches.append(stretch)
        self.since = stretch.end
        later = [(seconds, activity) for seconds, activity in self._said if seconds > self.since]
        now = [activity for seconds, activity in self._said if seconds <= self.since][-1]
        self._said = [(self.since, now), *later]
        while self.stretches[0].end < self.since - self._keep_seconds:
            self.stretches.popleft()


class Occupation:
    """A listener that derives what each process did; `keep_seconds` limits how far back."""

    def __init__(self, *, keep_seconds: float = math.inf) -> None:
        self.started = 0.0
        """When the session began, on the run's clock."""
        self._keep_seconds = keep_seconds
        self._tracks: dict[str, _Track] = {}
        self._first = math.inf

    @property
    def stretches(self) -> dict[str, tuple[Stretch, ...]]:
        """Intervals that are final, by process."""
        return {name: tuple(track.stretches) for name, track in self._tracks.items()}

    def __call__(self, event: Any) -> None:
        match event:
            case Activity() if event.worker != "controller":
                self._track(event.worker).say(event.seconds, _OF_STATE.get(event.doing.state, "unknown"))
            case EngineReport():
                stats = event.stats
                counters = {name: float(getattr(stats, field)) for name, field in _ENGINE_SECONDS.items()}
                self._track(event.worker).report(event.seconds, counters, up_seconds=stats.up_seconds)
            case GraderReport():
                counters = {"grading": event.busy_seconds, "waiting": event.up_seconds - event.busy_seconds}
                self._track(event.worker).report(event.seconds, counters, up_seconds=event.up_seconds)
            case StepFinished():
                _note_step(self._track(TRAINER), event)
            case WeightsLoaded():
                self._track(TRAINER).end_saying("loading", event.seconds)
            case WorkerDied():
                self._track(event.worker).restart(event.seconds)
            case RunStarted():
                self.started, self._first = event.seconds, min(self._first, event.seconds)
                for track in self._tracks.values():
                    track.restart(event.seconds, rewinds=True)
            case RunFinished():
                for track in self._tracks.values():
                    track.fill(event.seconds)
                    track.say(event.seconds, "unknown")

    def shares(self, begin: float, end: float) -> dict[str, dict[str, float]]:
        """For each process, the share of the window spent on each activity; only the time within the run counts.

        The shares of each process add up to 1.
        """
        begin = max(begin, self._first)
        if end <= begin:
            return {}
        return {name: _shares_in(track, begin, end) for name, track in sorted(self._tracks.items())}

    def _track(self, worker: str) -> _Track:
        if worker not in self._tracks:
            self._tracks[worker] = _Track(self.started, self._keep_seconds)
        return self._tracks[worker]


def occupation(events: Iterable[Any]) -> Occupation:
    """The occupation of all processes, from these events."""
    known = Occupation()
    for event in events:
        known(event)
    return known


def shares(source: RunState | Iterable[Any], begin: float, end: float) -> dict[str, dict[str, float]]:
    """For each process, the shares of the window (on the run's clock) by activity; they add up to 1."""
    known = getattr(source, "occupation", None)
    return (known if isinstance(known, Occupation) else occupation(source)).shares(begin, end)  # type: ignore[arg-type]


def _note_step(trainer: _Track, event: StepFinished) -> None:
    """Add publishing and saving, the wait for the batch, and the training step."""
    began = event.seconds - event.step_seconds
    trainer.fill(began - event.wait_seconds)
    phases: dict[str, float] = {}
    for name, seconds in event.result.phases:
        phases[name] = phases.get(name, 0.0) + seconds
    phases.pop("loading", None)  # over when the wait begins, and already told by an `Activity`
    between = {name: phases.pop(name) for name in BETWEEN_STEPS if name in phases}
    # A batch that is ready is sent behind the publication: phases that do not fit into the wait were in the step.
    room = max(0.0, began - trainer.since)
    fits = min(1.0, room / total) if (total := sum(between.values())) > 0 else 0.0
    trainer.cover(began, {name: fits * seconds for name, seconds in between.items()}, rest="waiting")
    late = {name: (1 - fits) * seconds for name, seconds in between.items()}
    rest = "other" if phases else "training"  # a trainer that does not report its phases
    trainer.cover(event.seconds, late | phases, rest=rest)
    trainer.say(event.seconds, "loading")


def _shares_of(seconds: Mapping[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items() if value > 0}


def _shares_in(track: _Track, begin: float, end: float) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for stretch in (*track.stretches, *track.open_stretches(end)):
        overlap = min(end, stretch.end) - max(begin, stretch.begin)
        if overlap > 0:
            for activity, share in stretch.parts.items():
                seconds[activity] = seconds.get(activity, 0.0) + share * overlap
    unknown = end - begin - sum(seconds.values())
    if unknown > 1e-9 * (end - begin):
        seconds["unknown"] = seconds.get("unknown", 0.0) + unknown
    return _shares_of(seconds)
