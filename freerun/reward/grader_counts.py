"""Counts what a grader has done since its start, and reports it in `GraderReport`s."""

from collections.abc import Callable, Sequence

import msgspec

from freerun.events.events import GraderReport
from freerun.types import Grade, GradeFailed


class GraderCounts:
    """Counts of one grader and its successors, each starting at 0; `clock` is any monotonic clock."""

    def __init__(self, worker: str, clock: Callable[[], float], *, num_at_once: int = 1) -> None:
        self._worker = worker
        self._clock = clock
        self._num_at_once = num_at_once
        """Number of jobs it works on at the same time; its busy time is their mean."""
        self._final: list[GraderReport] = []
        """Final reports of ended processes that have not been passed on yet."""
        self._started: float | None = None
        self._num_graded = self._num_failed = 0
        self._busy_seconds = self._slowest_seconds = 0.0

    def note_started(self) -> None:
        """Start counting for a new process; counts of the previous one are kept until they are reported."""
        if self._started is not None:
            self._final.append(self._report(0.0))
        self._started = self._clock()
        self._num_graded = self._num_failed = 0
        self._busy_seconds = self._slowest_seconds = 0.0

    def job(self) -> "_TimedJob":
        """Time one job; append its grades to the yielded list, if there are any."""
        return _TimedJob(self._clock, self._note_job)

    def _note_job(self, seconds: float, answers: list[Sequence[Grade]]) -> None:
        self._busy_seconds += seconds / self._num_at_once
        self._slowest_seconds = max(self._slowest_seconds, seconds)
        self._num_graded += 1
        grades = [grade for answer in answers for grade in answer]
        self._num_failed += not grades or any(isinstance(grade, GradeFailed) for grade in grades)

    def reports(self, seconds: float) -> list[GraderReport]:
        """The reports that are new at this time of the run's clock; none until the grader has started."""
        told, self._final = [_at(report, seconds) for report in self._final], []
        if self._started is not None:
            told.append(self._report(seconds))
            self._slowest_seconds = 0.0
        return told

    def _report(self, seconds: float) -> GraderReport:
        return GraderReport(
            seconds=seconds,
            worker=self._worker,
            num_graded=self._num_graded,
            num_failed=self._num_failed,
            busy_seconds=self._busy_seconds,
            slowest_seconds=self._slowest_seconds,
            up_seconds=0.0 if self._started is None else self._clock() - self._started,
        )


class _TimedJob:
    """A context manager; a class because `contextlib` costs more than the rest of a job's counting."""

    def __init__(self, clock: Callable[[], float], note: Callable[[float, list[Sequence[Grade]]], None]) -> None:
        self._clock = clock
        self._note = note
        self._answers: list[Sequence[Grade]] = []

    def __enter__(self) -> list[Sequence[Grade]]:
        self._began = self._clock()
        return self._answers

    def __exit__(self, *error: object) -> None:
        self._note(self._clock() - self._began, self._answers)


def _at(report: GraderReport, seconds: float) -> GraderReport:
    return msgspec.structs.replace(report, seconds=seconds)
