"""Progress of long work without a terminal for a bar: at most a line every few seconds."""

import time
from collections.abc import Callable

from rich.console import Console

from freerun.terminal.wording import duration

EVERY_SECONDS = 5.0


class ProgressLines:
    """Call it whenever more is done; silent on a terminal."""

    def __init__(
        self, console: Console, total: int, *, done: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._total = total
        self._done_before = done
        self._clock = clock
        self._began = self._last_line = clock()

    def __call__(self, done: int, what: str) -> None:
        """`done` of the total is done; `what` it is, in words."""
        now = self._clock()
        if self._console.is_terminal or now - self._last_line < EVERY_SECONDS or done >= self._total:
            return
        self._last_line = now
        left = (now - self._began) / max(1, done - self._done_before) * (self._total - done)
        line = f"{time.strftime('%H:%M:%S')}  {done}/{self._total} {what}  {duration(left)} left"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
