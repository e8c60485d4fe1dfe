"""Runs a study, one `freerun train` after the other, and continues where it stopped.

    state_of(run)   to run ──► freerun train ─┬─► finished
                 to resume ──► ... --resume ──┼─► failed     reported; the others are still run
                  finished ──► nothing        └─► stopped    by Ctrl-C: the run saves, the study ends

The kernel signals a run when the study dies, so no run outlives its study.
"""

import ctypes
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from freerun.errors import FreerunError
from freerun.events.accuracy import percent
from freerun.processes.interpreter import python_command
from freerun.processes.parent import PR_SET_PDEATHSIG
from freerun.reports.intervals import mean
from freerun.reports.record import read_run
from freerun.reports.study import Study, StudyRun, state_of, why_it_ended
from freerun.terminal.wording import brief, duration, printable

REFRESH_SECONDS = 0.5


class StudyRunner:
    """Works on a study for one command; afterwards `failures` and `is_stopped` give the result."""

    def __init__(self, study: Study, tell: Callable[[str, bool], None]) -> None:
        """`tell` gets a line of progress, and whether the line should stay on the screen."""
        self.failures: dict[str, str] = {}
        self.is_stopped = False
        self._study = study
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = time.monotonic()
        self._states = {run.name: state_of(run) for run in study.all_runs}
        finished = [run for run in study.runs if self._states[run.name] == "finished"]
        self._run_seconds = [read_run(run.directory).wall_seconds for run in finished]
        """Durations of finished runs, without the warm start, to estimate the others."""

    def run(self) -> None:
        """Run everything that is not finished."""
        for run in self._study.all_runs:
            if self._states[run.name] == "running":
                raise FreerunError(
                    f'the run "{run.directory}" is being run by another command; wait for it or end it'
                )
        pending = [run for run in self._study.all_runs if self._states[run.name] != "finished"]
        with self._signals():
            if pending:
                self._preflight(pending[0])
            for run in pending:
                if not self.is_stopped:
                    self._run_one(run)
                if run is self._study.warm and run.name in self.failures:
                    return  # there is no model to start the others from

    def _preflight(self, run: StudyRun) -> None:
        """Check everything that needs no training, by `freerun train --dry-run`; its error becomes ours."""
        log = self._study.directory / "logs" / "preflight.txt"
        if self._train([*self._arguments(run), "--dry-run"], log, "wb", lambda: None) and not self.is_stopped:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise FreerunError(
                "".join(last).removeprefix("freerun: ") or f"{run.name} cannot be started; see {log}"
            )

    def _run_one(self, run: StudyRun) -> None:
        is_resumed = self._states[run.name] == "to resume"
        self._say(run, "resumed" if is_resumed else "started")
        mode = "ab" if is_resumed else "wb"
        code = self._train(
            self._arguments(run), run.log_file, mode, lambda: self._say(run, "running", lasts=False)
        )
        if code == 0:
            record = read_run(run.directory)
            self._run_seconds += [record.wall_seconds] if run is not self._study.warm else []
            self._states[run.name] = "finished"
            self._say(run, f"finished: held-out {percent(record.numbers['final_accuracy'])}")
        elif self.is_stopped:
            self._say(run, "stopped")
        else:
            self.failures[run.name] = why_it_ended(run)
            self._say(run, f"failed: {brief(self.failures[run.name])}")

    def _arguments(self, run: StudyRun) -> list[str]:
        return train_arguments(run, is_resumed=self._states[run.name] == "to resume")

    def _train(self, arguments: list[str], log: Path, mode: str, on_wait: Callable[[], None]) -> int:
        """Run one `freerun` process to its end; returns its exit code."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open(mode) as output:
            self._process = subprocess.Popen(
                [*python_command("freerun.cli.main"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches it once, through us
                preexec_fn=_end_with_parent,
            )
        while True:
            try:
                return self._process.wait(REFRESH_SECONDS)
            except subprocess.TimeoutExpired:
                on_wait()

    def _say(self, run: StudyRun, what: str, *, lasts: bool = True) -> None:
        runs = self._study.all_runs
        num_left = sum(state != "finished" for state in self._states.values()) - len(self.failures)
        left = (
            f", about {duration(num_left * mean(self._run_seconds))} left"
            if self._run_seconds and num_left
            else ""
        )
        spent = duration(time.monotonic() - self._begin)
        line = f"[{runs.index(run) + 1}/{len(runs)}] {run.name} {what}"
        self._tell(f"{printable(line)}  ({spent} so far{left})", lasts)

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


def train_arguments(run: StudyRun, *, is_resumed: bool) -> list[str]:
    """Command-line arguments of a run, after `freerun`."""
    return [*run.arguments, *(["--resume"] if is_resumed else [])]


_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In the child: if the study is killed, the run finishes its step, saves and ends, as with Ctrl-C."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
