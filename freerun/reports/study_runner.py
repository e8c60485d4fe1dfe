"""Runs a study, one `freerun train` after the other, and goes on where it stopped.

What is done is read from the runs' stores, never from notes of our own: a finished run is not repeated, a run
that was cut short is resumed, whatever ended the study. A run that fails is reported and the others go on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from freerun.config.load import as_toml, key_types
from freerun.config.recipe import Recipe
from freerun.errors import FreerunError
from freerun.reports.record import CONFIG_FILE, RunRecord, read_config, read_run
from freerun.reports.study import Study, StudyRun

POLL_SECONDS = 0.5
PR_SET_PDEATHSIG = 1

Todo = Literal["start", "resume", "nothing"]


@dataclass(frozen=True)
class Progress:
    """Where the study stands when a run starts, goes on or ends."""

    run: StudyRun
    place: int
    """The run's, counted from 1 over the whole study."""
    num_runs: int
    seconds: float
    """Since this command was started."""
    left_seconds: float | None
    """Estimate for the runs not yet finished, the current one included; None before there is any to go by."""
    outcome: Literal["started", "resumed", "running", "finished", "failed", "stopped"]
    detail: str = ""
    """What a finished run reached, why another failed; text still hostile."""


Listener = Callable[[Progress], None]


@dataclass
class StudyRunner:
    """One command's work on a study."""

    study: Study
    on_progress: Listener
    failures: dict[str, str] = field(default_factory=dict)
    """Why, by the name of the run."""
    is_stopped: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _seconds_of_finished: list[float] = field(default_factory=list)
    _begin: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Do everything that is not done; afterwards `failures` and `is_stopped` say how it went."""
        runs = [*([self.study.warm] if self.study.warm else []), *self.study.runs]
        todos = [(place, run, what_is_left(run)) for place, run in enumerate(runs, start=1)]
        self._seconds_of_finished = [
            read_run(r.directory).wall_seconds for _, r, todo in todos if todo == "nothing"
        ]
        left = [(place, run, todo) for place, run, todo in todos if todo != "nothing"]
        with self._signals():
            for index, (place, run, todo) in enumerate(left):
                if self.is_stopped:
                    return
                self._run_one(run, todo, place, len(runs), num_left=len(left) - index)
                if run is self.study.warm and run.name in self.failures:
                    return  # there is no model to start the others from

    def _run_one(self, run: StudyRun, todo: Todo, place: int, num_runs: int, *, num_left: int) -> None:
        def tell(outcome: Any, detail: str = "", num_left: int = num_left) -> None:
            known = self._seconds_of_finished
            estimate = num_left * sum(known) / len(known) if known else None
            elapsed = time.monotonic() - self._begin
            self.on_progress(Progress(run, place, num_runs, elapsed, estimate, outcome, detail))

        tell("resumed" if todo == "resume" else "started")
        code = self._train(run, is_resumed=todo == "resume", on_poll=lambda: tell("running"))
        if code == 0:
            record = read_run(run.directory)
            self._seconds_of_finished.append(record.wall_seconds)
            tell("finished", f"held-out {record.numbers().final_accuracy:.3f}", num_left - 1)
        elif self.is_stopped:
            tell("stopped")
        else:
            self.failures[run.name] = _why(run, self.study.log_file(run), code)
            tell("failed", self.failures[run.name], num_left - 1)

    def _train(self, run: StudyRun, *, is_resumed: bool, on_poll: Callable[[], None]) -> int:
        log = self.study.log_file(run)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                train_command(self.study, run, is_resumed=is_resumed),
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
                on_poll()

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


def train_command(study: Study, run: StudyRun, *, is_resumed: bool) -> list[str]:
    command = [sys.executable, "-m", "freerun.cli.main", "train", str(study.recipe_path), *run.overrides]
    return [*command, *(["--resume"] if is_resumed else [])]


def what_is_left(run: StudyRun) -> Todo:
    """What to do for a run, by its directory; refuses one that is not the run this study asks for."""
    if not (run.directory / CONFIG_FILE).is_file():
        return "start"
    difference = _difference(run)
    try:
        record = read_run(run.directory)
    except FreerunError:  # cut off before its store was made
        return "start" if difference else "resume"
    if record.summary.state == "running":
        raise FreerunError(f'the run "{run.directory}" is being run by another command; wait for it or end it')
    if difference and not record.steps and not record.is_finished:
        return "start"  # it failed before its first step, and the command was corrected
    if difference:
        raise FreerunError(
            f'the run "{run.directory}" was made with {difference}; '
            "give this study a directory of its own with --out"
        )
    return "nothing" if record.is_finished else "resume"


def finished_records(runs: Sequence[StudyRun]) -> dict[str, RunRecord]:
    """The finished runs of the study, by name."""
    found = {}
    for run in runs:
        if (run.directory / CONFIG_FILE).is_file() and what_is_left(run) == "nothing":
            found[run.name] = read_run(run.directory)
    return found


def _difference(run: StudyRun) -> str:
    """The first setting of the run that is not the study's; empty if it is the same run."""
    saved, wanted = read_config(run.directory), _settings(run.recipe)
    for key in sorted(saved.keys() | wanted.keys()):
        if key == "run.directory":  # it is here, by whatever path it was named
            continue
        found, asked = (_comparable(key, values.get(key)) for values in (saved, wanted))
        if found != asked:
            return f"{key} = {as_toml(found)}, not {as_toml(asked)}"
    return ""


def _settings(recipe: Recipe) -> dict[str, Any]:
    return {key: getattr(getattr(recipe, key.split(".")[0]), key.split(".")[1]) for key in key_types()}


def _comparable(key: str, value: Any) -> Any:
    if key == "model.path" and value:
        return str(Path(value).resolve())
    return list(value) if isinstance(value, tuple) else value


def _why(run: StudyRun, log: Path, code: int) -> str:
    """What a person needs to know of a run that failed: its own reason, else the last line it printed."""
    try:
        reason = read_run(run.directory).summary.reason
    except FreerunError:
        reason = ""
    lines = log.read_text(errors="replace").strip().splitlines()
    return reason or (lines[-1] if lines else f"it ended with exit code {code} and said nothing")


_libc = ctypes.CDLL(None) if os.name == "posix" else None


def _end_with_parent() -> None:
    """In the child: if the study is killed the run finishes its step, saves and ends, as by Ctrl-C."""
    if _libc is not None and hasattr(_libc, "prctl"):
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
