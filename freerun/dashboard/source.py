"""The source of the page's numbers: the store of one run, and the directory of the other runs.

A `Source` keeps a `RunState` up to date with a `Follower`, as the terminal does with the events themselves, so
page and terminal cannot differ. It notes the step at which each health rule began to complain. It belongs to
one thread, as SQLite's connections do. Every query to the store opens a separate connection, which costs less
than a millisecond and never blocks the file's writer.
"""

import math
import time
import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from freerun.data.tokenizer import Tokenizer
from freerun.errors import FreerunError
from freerun.events.events import StepFinished
from freerun.events.follow import Follower, has_tables
from freerun.events.health import examine
from freerun.events.metrics import RunState
from freerun.events.opening import open_state
from freerun.events.reader import RunReader, RunSummary
from freerun.events.schema import STORE_NAME, STORES_OF_RUNS, Rewound

SETTINGS_FILE = "config.toml"
MAX_EXAMINED = 200
"""Steps whose health is examined when a long run is opened; an alarm may then be marked a few steps late."""


class AlarmMark(msgspec.Struct, frozen=True):
    """A health rule that began to complain at a step."""

    rule: str
    level: str
    step: int
    text: str


class Source:
    """One run as the page sees it; `runs` is the directory of the runs to list, by default the run's parent."""

    def __init__(
        self, run: str | Path, runs: str | Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = Path(run).absolute()
        if self.directory.suffix == ".sqlite":
            self.directory = self.directory.parent
        self.runs = Path(runs).absolute() if runs is not None else self.directory.parent
        self.state = RunState()
        self.alarms: list[AlarmMark] = []
        self._clock = clock
        self._follower: Follower | None = None
        self._complaining: set[str] = set()

    def update(self) -> None:
        """Process what has happened since the last call; a rewind rebuilds the state."""
        if self._follower is None:
            self._open()
            return
        events = [event for _, event in self._follower.poll()]
        if any(isinstance(event, Rewound) for event in events):
            self._open()
            return
        for event in events:
            self.state(event)
            if isinstance(event, StepFinished):
                self._note_alarms(self.state, event)

    def _open(self) -> None:
        """Load the current state, if there is a store, and a follower for later events."""
        self.close()
        self.alarms, self._complaining = [], set()
        if not has_tables(self.directory / STORE_NAME):
            return
        with self.reader() as reader:
            opened = open_state(reader, examined=_examined, look=self._note_alarms)
        self.state, self._follower = opened.state, Follower(self.directory, after=opened.last_id)

    def _note_alarms(self, state: RunState, event: StepFinished) -> None:
        findings = examine(state, event.seconds)
        for finding in findings:
            if finding.rule not in self._complaining:
                mark = AlarmMark(finding.rule, finding.level, event.result.version, finding.text)
                self.alarms.append(mark)
        self._complaining = {finding.rule for finding in findings}

    def close(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    @property
    def name_for_commands(self) -> str:
        """The run's name for command lines: as it was started, if that still works."""
        started = self.state.directory
        return started if started and Path(started).absolute() == self.directory else str(self.directory)

    @property
    def num_events(self) -> int:
        """Number of events, or slightly more: ids are never reused."""
        return self._follower.last_id if self._follower is not None else 0

    @property
    def has_store(self) -> bool:
        return (self.directory / STORE_NAME).is_file()

    def reader(self) -> RunReader:
        """A connection for one query; use it in a `with`."""
        return RunReader(self.directory)

    def status(self) -> RunSummary | None:
        """The run and its progress; None if there is no store yet."""
        if not self.has_store:
            return None
        try:
            with self.reader() as reader:
                return reader.status()
        except FreerunError:
            if self.state.name:
                raise
            return None  # its writer has only created the file

    def now(self, status: RunSummary | None) -> float:
        """The run's clock; for a live run, extrapolated from its last event with this machine's time."""
        if status is None or status.state != "running":
            return self.state.seconds
        return self.state.seconds + max(0.0, self._clock() - status.updated)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The run's settings by dotted key; empty if they cannot be read."""
        return read_settings(self.directory)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the run's model; None if there is none, for example for a store alone."""
        try:
            return Tokenizer.load(self.directory / "model")
        except (FreerunError, OSError):
            return None


def runs_inside(directory: Path) -> dict[str, Path]:
    """The runs of a directory, by name; a link that leads out of the directory is not a run."""
    root = directory.resolve()
    found = {}
    for store in root.glob(STORES_OF_RUNS):
        path = store.parent.resolve()
        if path.parent == root and store.resolve().parent == path and store.is_file():
            found[store.parent.name] = path
    return found


def _examined(num_steps: int) -> range:
    """Indices of the steps that are examined, including the last."""
    distance = max(1, num_steps // MAX_EXAMINED)
    return range((num_steps - 1) % distance, num_steps, distance)


def read_settings(directory: Path) -> dict[str, Any]:
    """A run's config.toml by dotted key; empty if it is missing, damaged or a link."""
    file = directory / SETTINGS_FILE
    try:
        values = {} if file.is_symlink() else tomllib.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return {
        f"{section}.{key}": value
        for section, table in values.items()
        if isinstance(table, dict)
        for key, value in table.items()
    }


def finite(value: float | None, digits: int = 6) -> float | None:
    """A number for JSON with this many significant digits; None if it is unknown."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")
