"""Draws a simulated run's slots in use, gate and loads over time, from its events.

One character per interval: tenths of the maximum, so `4` means 40 to 50 %, `9` everything above 90 %, and a dot
nothing. Simulated engines report every 10 s and after each load; between reports the last one counts.
"""

from bisect import bisect_right
from itertools import pairwise

from freerun.events.events import AnyEvent, EngineLoaded, EngineReport, Queues, StepFinished
from freerun.simulation.run import Outcome


class Lanes:
    """An event listener; can draw the lanes at any width once the run is over."""

    def __init__(self) -> None:
        self._slots: dict[str, list[tuple[float, int, int]]] = {}
        """(time, running sequences, slots), by engine."""
        self._closed: list[tuple[float, float]] = [(0.0, 0.0)]
        """(time, how long the gate had been closed by then)."""
        self._loads: list[tuple[float, float]] = []

    def __call__(self, event: AnyEvent) -> None:
        match event:
            case EngineReport(seconds=seconds, worker=worker, stats=stats):
                self._slots.setdefault(worker, []).append((seconds, stats.num_running, stats.num_slots))
            case EngineLoaded(seconds=seconds, load_seconds=load_seconds):
                self._loads.append((seconds - load_seconds, seconds))
            case Queues(seconds=seconds, counts=counts):
                self._closed.append((seconds, counts.gate_closed_seconds))
            case StepFinished(seconds=seconds, queues=counts) if counts is not None:
                self._closed.append((seconds, counts.gate_closed_seconds))

    def describe(self, outcome: Outcome, width: int) -> list[str]:
        """The lanes over the time of the outcome."""
        part = outcome.seconds / width
        edges = [outcome.begin + place * part for place in range(width + 1)]
        lanes = {
            "slots": ([self._slots_used((a + b) / 2) for a, b in pairwise(edges)], "slots of engines in use"),
            "gate": ([self._closed_share(a, b) for a, b in pairwise(edges)], "the gate is shut"),
            "loads": ([self._loading_share(a, b) for a, b in pairwise(edges)], "engines stand still to load"),
        }
        return [
            f"{name:<8}  {''.join(map(_tenth, shares))}  ({words}, in tenths)"
            for name, (shares, words) in lanes.items()
        ]

    def _slots_used(self, seconds: float) -> float:
        running = total = 0
        for reports in self._slots.values():
            place = bisect_right(reports, seconds, key=lambda report: report[0])
            if place:
                _, num_running, num_slots = reports[place - 1]
                running, total = running + num_running, total + num_slots
        return running / total if total else 0.0

    def _closed_share(self, begin: float, end: float) -> float:
        return (self._closed_by(end) - self._closed_by(begin)) / (end - begin)

    def _closed_by(self, seconds: float) -> float:
        """Time for which the gate was closed by then, interpolated between two counts."""
        place = bisect_right(self._closed, seconds, key=lambda count: count[0])
        before = self._closed[place - 1]
        if place == len(self._closed):
            return before[1]
        after = self._closed[place]
        return before[1] + (after[1] - before[1]) * (seconds - before[0]) / (after[0] - before[0])

    def _loading_share(self, begin: float, end: float) -> float:
        stood = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self._loads)
        return stood / ((end - begin) * max(1, len(self._slots)))


def _tenth(share: float) -> str:
    return "." if share < 1e-6 else str(min(9, int(10 * share + 1e-9)))
