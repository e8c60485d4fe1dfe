"""The process that reports a run to one tracker: it follows the store and calls the reporter.

    store.sqlite ──► Follower ──► Measuring ──► reporter ──► tracker

The run does not depend on it: it can be slow, fail or hang. It ends when the run has ended and everything is
sent, when its standard input is closed, or with the process that started it. Steps reach the reporter in order
and once: `reporter.py` says what happens when a run repeats some, `cursor.py` what is kept between processes.
"""

import importlib
import os
import select
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from freerun import __version__
from freerun.events.events import AnyEvent, SftStep, StepFinished
from freerun.events.follow import Follower
from freerun.events.reader import RunReader
from freerun.events.schema import Rewound, StoreError
from freerun.processes.guard import leave_guard
from freerun.processes.parent import die_with_parent, exit_with_traceback
from freerun.trackers.cursor import Cursor, cursor_file, held, new_attempt, read_cursor, write_cursor
from freerun.trackers.measuring import Measuring
from freerun.trackers.registry import make_reporter
from freerun.trackers.reporter import Reporter, RunInfo, SampleTable

TELL_EVERY_SECONDS = 0.5
SILENT_SECONDS = 5.0
"""How often a silent run's liveness and health are checked."""
NUM_SAMPLES = 16
NICENESS = 10


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Start options of the process."""

    project: str = "freerun"
    samples_every: int = 0
    is_again: bool = False
    """Whether to report again what was reported before."""


class Reporting:
    """One run and one tracker: `deliver` sends new events, `close` ends."""

    def __init__(
        self, directory: Path, make: Callable[[], Reporter], options: ReportOptions, before: Cursor | None
    ) -> None:
        self._directory, self._make, self._options = directory, make, options
        self._reporter = make()
        can_continue = (
            before is not None and before.is_closed and bool(getattr(self._reporter, "continues", False))
        )
        self.cursor = before if before is not None and can_continue else new_attempt(before)
        self._skip_to = self.cursor.last_id if can_continue else 0
        """The last event that the tracker received from an earlier process."""
        self._is_started = False
        self._open_store()

    def _open_store(self) -> None:
        self._follower = Follower(self._directory)
        self.measuring = Measuring()

    def deliver(self) -> bool:
        """Pass new events to the reporter; returns whether there were any."""
        events = self._follower.poll()
        for number, event in events:
            if number > self._skip_to and self._repeats(event):
                self._begin_again()
                return True
            self._tell(number, event)
        return bool(events)

    def look(self, now: float) -> None:
        """Raise alarms that are due to silence."""
        for alarm in self.measuring.alarms(now):
            self._started().event(alarm)

    def close(self, outcome: str) -> Cursor:
        """Close the reporter; from now on it is known what the tracker has."""
        if self._is_started or not self._skip_to:  # otherwise there was nothing new
            self._started().close(outcome)
        self._follower.close()
        self.cursor = msgspec.structs.replace(self.cursor, is_closed=True)
        return self.cursor

    def _tell(self, number: int, event: AnyEvent | Rewound) -> None:
        derived = self.measuring(event)
        if number <= self._skip_to:
            for _ in derived:
                pass  # the state needs every event, but the tracker has this one
            return
        last_step, last_sft_step = self.cursor.last_step, self.cursor.last_sft_step
        if not isinstance(event, Rewound):
            self._started().event(event)
        for more in derived:
            self._started().event(more)
        if isinstance(event, StepFinished):
            last_step = event.result.version
            self._tell_samples(event)
        elif isinstance(event, SftStep):
            last_sft_step = event.step
        self.cursor = msgspec.structs.replace(
            self.cursor, last_id=number, last_step=last_step, last_sft_step=last_sft_step
        )

    def _tell_samples(self, event: StepFinished) -> None:
        every, version = self._options.samples_every, event.result.version
        if every and version % every == 0:
            with RunReader(self._directory) as reader:
                samples = tuple(reader.trajectories(version)[:NUM_SAMPLES])
            self._started().event(SampleTable(seconds=event.seconds, step=version, samples=samples))

    def _repeats(self, event: AnyEvent | Rewound) -> bool:
        """Whether the tracker has steps that were undone."""
        match event:
            case Rewound():
                return event.version < self.cursor.last_step
            case StepFinished():
                return event.result.version <= self.cursor.last_step
            case SftStep():
                last_sft_step = self.cursor.last_sft_step
                return last_sft_step is not None and event.step <= last_sft_step
        return False

    def _begin_again(self) -> None:
        if self._is_started:
            self._reporter.close("rewound")
            self._reporter, self._is_started = self._make(), False
        self._follower.close()
        self.cursor, self._skip_to = new_attempt(self.cursor), 0
        self._open_store()

    def _started(self) -> Reporter:
        """The reporter, started before its first event."""
        if not self._is_started:
            self._reporter.start(self._describe())
            self._is_started = True
        return self._reporter

    def _describe(self) -> RunInfo:
        with RunReader(self._directory) as reader:
            updated = reader.status().updated
        return RunInfo(
            name=self._directory.resolve().name,
            directory=str(self._directory),
            project=self._options.project,
            settings=read_settings(self._directory),
            version=__version__,
            key=self.cursor.key,
            attempt=self.cursor.attempt,
            is_resumed=self._skip_to > 0,
            started=updated - self.measuring.state.seconds,
        )


def read_settings(directory: Path) -> dict[str, Any]:
    """The settings of a run by dotted key; empty if it has no config.toml."""
    file = directory / "config.toml"
    return dict(_flat(tomllib.loads(file.read_text()))) if file.is_file() else {}


def _flat(section: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in section.items():
        key = f"{prefix}{name}"
        pairs += _flat(value, f"{key}.") if isinstance(value, dict) else [(key, value)]
    return pairs


def report(directory: Path, tracker: str, options: ReportOptions, *, must_stop: Callable[[float], bool]) -> None:
    """Report a run until it has ended; `must_stop` waits that many seconds, or until a stop request."""
    file = cursor_file(directory, tracker)
    with held(file, tracker):
        before = read_cursor(file)
        if before is not None and before.is_closed and options.is_again:
            before = msgspec.structs.replace(before, is_closed=False)
        reporting = Reporting(directory, lambda: make_reporter(tracker), options, before)
        write_cursor(file, msgspec.structs.replace(reporting.cursor, is_closed=False))
        outcome = _follow(reporting, directory, must_stop)
        write_cursor(file, reporting.close(outcome))


def _follow(reporting: Reporting, directory: Path, must_stop: Callable[[float], bool]) -> str:
    """Deliver until the run has ended; returns how it ended."""
    heard = looked = time.monotonic()
    is_stopping = False
    while True:
        if reporting.deliver():
            heard = time.monotonic()
            continue
        if is_stopping:
            return _state_of(directory)
        now = time.monotonic()
        if now - looked >= SILENT_SECONDS or reporting.measuring.state.finished is not None:
            looked = now
            if _state_of(directory) != "running":
                is_stopping = True  # deliver once more, for events written in between
                continue
            reporting.look(reporting.measuring.state.seconds + now - heard)
        is_stopping = must_stop(TELL_EVERY_SECONDS)


def _state_of(directory: Path) -> str:
    try:
        with RunReader(directory) as reader:
            return reader.status().state
    except StoreError:
        return "running"  # not written yet; standard input tells when it ends


def main() -> None:
    leave_guard()
    directory, tracker, parent, options = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    die_with_parent(parent)
    os.nice(NICENESS)

    def must_stop(seconds: float) -> bool:
        return bool(select.select([0], [], [], seconds)[0])

    try:
        report(directory, tracker, msgspec.json.decode(options, type=ReportOptions), must_stop=must_stop)
    except BaseException:  # noqa: BLE001 - the edge of the process
        exit_with_traceback()
    # `sys.exit` would wait for a tracker's threads, although everything has been sent.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    # Run under its real name: user code imports its classes from here.
    importlib.import_module("freerun.trackers.reporting").main()
