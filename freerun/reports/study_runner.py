"""Runs a study, one `freerun train` after the other, and goes on where it stopped.

    state_of(run)   to run ──► freerun train ─┬─► finished
                 to resume ──► ... --resume ──┼─► failed     reported; the others go on
                  finished ──► nothing        └─► stopped    by Ctrl-C: the run saves, the study ends

A run ends with the study, whatever ends that: it has asked the kernel for a signal on our death.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from freerun.errors import FreerunError
from freerun.events.accuracy import percent
from freerun.processes.interpreter import python_command
from freerun.reports.record import read_run
from freerun.reports.study import Study, StudyRun
from freerun.reports.study_state import RunState, state_of, why_it_ended
from freerun.reports.tables import brief

POLL_SECONDS = 0.5
PR_SET_PDEATHSIG = 1

Happening = Literal["started", "resumed", "running", "finished", "failed", "stopped"]


@dataclass(frozen=True)
class Progress:
    """Where the study stands when something happens to a run."""

    run: StudyRun
    happening: Happening
    detail: str
    """What a finished run reached, why another failed; text still hostile."""
    place: int
    """The run's, counted from 1 over the whole study."""
    num_runs: int
    seconds: float
    """Since this command was started."""
    left_seconds: float | None
    """Estimate for the runs not yet finished, this one included; None before there is any to go by."""


class StudyRunner:
    """One command's work on a study; afterwards `failures` and `is_stopped` say how it went."""

    def __init__(self, study: Study, on_progress: Callable[[Progress], None]) -> None:
        self.failures: dict[str, str] = {}
        self.is_stopped = False
        self._study = study
        self._on_progress = on_progress
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = time.monotonic()
        self._states = {run.name: state_of(run) for run in study.all_runs}
        self._run_seconds = [
            read_run(run.directory).wall_seconds for run in study.runs if self._states[run.name] == "finished"
        ]
        """Of the finished runs, without the warm start: what the others will about take."""

    def run(self) -> None:
        """Do everything that is not done."""
        for run in self._study.all_runs:
            if self._states[run.name] == "running":
                raise FreerunError(
                    f'the run "{run.directory}" is being run by another command; wait for it or end it'
                )
        with self._signals():
            for run in self._study.all_runs:
                state = self._states[run.name]
                if state != "finished" and not self.is_stopped:
                    self._run_one(run, state)
                if run is self._study.warm and run.name in self.failures:
                    return  # there is no model to start the others from

    def _run_one(self, run: StudyRun, state: RunState) -> None:
        is_resumed = state == "to resume"
        self._tell(run, "resumed" if is_resumed else "started")
        code = self._train(run, is_resumed=is_resumed)
        if code == 0:
            record = read_run(run.directory)
            self._run_seconds += [record.wall_seconds] if run is not self._study.warm else []
            self._states[run.name] = "finished"
            self._tell(run, "finished", f"held-out {percent(record.numbers().final_accuracy)}")
        elif self.is_stopped:
            self._tell(run, "stopped")
        else:
            self.failures[run.name] = why_it_ended(self._study, run)
            self._tell(run, "failed", brief(self.failures[run.name]))

    def _train(self, run: StudyRun, *, is_resumed: bool) -> int:
        """One `freerun train` to its end; returns its exit code."""
        log = self._study.log_file(run)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab" if is_resumed else "wb") as output:
            self._process = subprocess.Popen(
                [
                    *python_command("freerun.cli.main"),
                    *train_arguments(self._study, run, is_resumed=is_resumed),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it through us, once
                preexec_fn=_end_with_parent,
            )
        while True:
            try:
                return self._process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                self._tell(run, "running")

    def _tell(self, run: StudyRun, happening: Happening, detail: str = "") -> None:
        known = self._run_seconds
        num_left = sum(state != "finished" for state in self._states.values()) - len(self.failures)
        self._on_progress(
            Progress(
                run=run,
                happening=happening,
                detail=detail,
                place=self._study.all_runs.index(run) + 1,
                num_runs=len(self._study.all_runs),
                seconds=time.monotonic() - self._begin,
                left_seconds=num_left * sum(known) / len(known) if known else None,
            )
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM go to the run, which finishes its step and saves; the second stops it at once."""
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


def train_arguments(study: Study, run: StudyRun, *, is_resumed: bool) -> list[str]:
    """What follows `freerun` on the command line of a run."""
    return ["train", str(study.recipe_path), *run.overrides, *(["--resume"] if is_resumed else [])]


_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In the child: if the study is killed the run finishes its step, saves and ends, as by Ctrl-C."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
