"""What a program that calls `freerun.train` adds to a run: a reward function, rows, listeners, a stop switch.

`freerun serve` adds the key of its clients.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from freerun.events.events import Listener
from freerun.gateway.sessions import random_key
from freerun.processes.worker_process import KEY_VARIABLE
from freerun.reward.user_function import RewardFunction


class StopSwitch:
    """Ctrl-C for a session in another thread; a press is remembered until the session connects."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal may interrupt a press, and press again
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
class LiveKey:
    """What clients of a run on live traffic send as their key."""

    used: str
    is_given: bool
    """Whether the user chose it; an address that other machines can reach requires that."""


def make_key(given: str) -> LiveKey:
    """The key that the user gave, or a random one; other users see command lines, but not the variable."""
    chosen = given or os.environ.get(KEY_VARIABLE, "")
    return LiveKey(chosen or random_key(), bool(chosen))


@dataclass(frozen=True)
class Attachments:
    """Empty for a command."""

    reward: RewardFunction | None = None
    """Called in this process instead of `reward.grader`."""
    rows: bytes | None = None
    """JSON lines for `data.jsonl` in the run directory."""
    listeners: Sequence[Listener] = ()
    stop: StopSwitch = field(default_factory=StopSwitch)
    live_key: LiveKey | None = None
    """Key for clients of a run on live traffic."""
