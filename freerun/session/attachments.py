"""What a program that calls `freerun.train` adds to a run: a reward function, rows, listeners, a stop switch.

`freerun serve` adds the clients' key.
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
    """Ctrl-C for a session in another thread; a press before the session connects is remembered."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal may interrupt a press and press again
        self._stop: Callable[[], object] | None = None
        self._is_pressed = False

    def connect(self, stop: Callable[[], object]) -> None:
        """Connect the session's `stop`, which must be callable from any thread."""
        with self._lock:
            self._stop = stop
            if self._is_pressed:
                stop()

    def press(self) -> None:
        with self._lock:
            self._is_pressed = True
            if self._stop is not None:
                with contextlib.suppress(RuntimeError):  # the session's event loop is closed: it has ended
                    self._stop()


@dataclass(frozen=True)
class LiveKey:
    """The key that clients of a run on live traffic send."""

    used: str
    is_given: bool
    """Whether the user chose the key; required on an address that other machines can reach."""


def make_key(given: str) -> LiveKey:
    """The given key or a random one. It is not a command-line argument because other users can see those."""
    chosen = given or os.environ.get(KEY_VARIABLE, "")
    return LiveKey(chosen or random_key(), bool(chosen))


@dataclass(frozen=True)
class Attachments:
    """Everything a caller adds to a run; empty for a command."""

    reward: RewardFunction | None = None
    """Called in this process instead of `reward.grader`."""
    rows: bytes | None = None
    """JSON lines for `data.jsonl` in the run directory."""
    listeners: Sequence[Listener] = ()
    stop: StopSwitch = field(default_factory=StopSwitch)
    live_key: LiveKey | None = None
    """Key for clients of a run on live traffic."""
