"""What a program that calls `freerun.train` adds to a run: a reward function, rows, listeners, a stop switch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from freerun.events.events import AnyEvent, Listener
from freerun.reward.function_grader import RewardFunction
from freerun.terminal.wording import printable


class StopSwitch:
    """Ctrl-C for a session in another thread; remembered until there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], object] | None = None
        self._is_pressed = False

    def connect(self, stop: Callable[[], object]) -> None:
        """`stop` may be called from any thread."""
        with self._lock:
            self._stop = stop
            if self._is_pressed:
                stop()

    def press(self) -> None:
        with self._lock:
            self._is_pressed = True
            if self._stop is not None:
                with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
                    self._stop()


@dataclass(frozen=True)
class Attachments:
    """A command attaches nothing."""

    reward: RewardFunction | None = None
    """Called in this process instead of `reward.grader`."""
    rows: bytes | None = None
    """JSON lines for `data.jsonl` in the run directory."""
    listeners: Sequence[Listener] = ()
    stop: StopSwitch = field(default_factory=StopSwitch)


class Listeners:
    """Passes every event on; a listener that raises is reported and gets no more."""

    def __init__(self, listeners: Sequence[Listener], *, report: Callable[[str], None]) -> None:
        self._listeners = list(listeners)
        self._report = report

    def __call__(self, event: AnyEvent) -> None:
        for listener in self._listeners.copy():
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 - the edge of user code: it must not end the run
                self._listeners.remove(listener)
                name = getattr(listener, "__qualname__", type(listener).__name__)
                reason = printable(f"{type(error).__name__}: {error}")
                self._report(f"listener {name} raised {reason}; it gets no more events")
