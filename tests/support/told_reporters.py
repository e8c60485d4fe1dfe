"""Reporters that remember what they are told, and those that misbehave; named in recipes as a user's own."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from freerun.events.events import AnyEvent
from freerun.trackers.reporter import Measured, RunInfo


class Told:
    """Everything it was told; the newest attempt is the last of `attempts`."""

    def __init__(self, attempts: list[Any], *, continues: bool = False) -> None:
        self.continues = continues
        self.events: list[Any] = []
        self.outcome = ""
        self._attempts = attempts

    def start(self, run: RunInfo) -> None:
        self.run = run
        self._attempts.append(self)

    def event(self, event: Any) -> None:
        self.events.append(event)

    def close(self, outcome: str) -> None:
        self.outcome = outcome

    @property
    def steps(self) -> list[int]:
        return [e.step for e in self.events if isinstance(e, Measured) and "train/reward" in e.values]


def write_pid(file: Path) -> None:
    """Whole or not at all: a test reads it as soon as it is there."""
    new = file.with_suffix(".new")
    new.write_text(str(os.getpid()))
    new.rename(file)


class Bad:
    def start(self, run: RunInfo) -> None:
        write_pid(Path(run.directory, "pid"))

    def event(self, event: AnyEvent) -> None:
        pass

    def close(self, outcome: str) -> None:
        pass


class Raising(Bad):
    def event(self, event: AnyEvent) -> None:
        raise ValueError("no account \x1b[31m")


class Hanging(Bad):
    def event(self, event: AnyEvent) -> None:
        while True:
            time.sleep(1)


class Exiting(Bad):
    def event(self, event: AnyEvent) -> None:
        os._exit(3)


class Flooding(Bad):
    """Prints without end, and starts a program that does not end either."""

    def start(self, run: RunInfo) -> None:
        super().start(run)
        if os.fork() == 0:
            os.setsid()
            write_pid(Path(run.directory, "left-over"))
            while True:
                time.sleep(1)

    def event(self, event: AnyEvent) -> None:
        line = "x" * 1000
        while True:
            print(line, file=sys.stderr)


class NoEvent:
    def start(self, run: RunInfo) -> None: ...

    def close(self, outcome: str) -> None: ...
