"""Watching a run: a live view on a terminal, lines elsewhere; lines and the closing summary in a log file.

An event only updates the state: the terminal is drawn by rich's own thread, four times a second.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import RawIOBase
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live

from freerun.errors import ConfigError
from freerun.events.events import AnyEvent, Notice
from freerun.events.metrics import RunState
from freerun.processes.worker_process import open_log
from freerun.terminal.lines import describe_event, summarize
from freerun.terminal.panel import render
from freerun.terminal.wording import printable_block

FRAMES_PER_SECOND = 4
LOG_FILE = "log.txt"
"""In the run directory: everything that is printed, of all sessions."""


def _time_of_day() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


class RunView:
    """A listener that shows a run until it is closed; the last picture and the summary stay."""

    def __init__(
        self, console: Console, log: RawIOBase, *, directory: Path, now: Callable[[], str] = _time_of_day
    ) -> None:
        self.state = RunState()
        self._console = console
        self._log = log
        """Unbuffered: what a full disk refuses is lost, and not tried again when the file is closed."""
        self._directory = directory
        self._now = now
        self._offset: float | None = None
        # rich's thread builds the picture while the controller's updates the state.
        self._lock = threading.Lock()
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=FRAMES_PER_SECOND)
            self._live.start()

    def __call__(self, event: AnyEvent) -> None:
        with self._lock:
            self.state(event)
            self._offset = event.seconds - time.monotonic()
        if line := describe_event(self.state, event):
            is_shown = self._live is None or isinstance(event, Notice)  # above the picture
            self._say(f"{self._now()}  {printable_block(line)}", is_shown=is_shown)

    def close(self) -> None:
        """Stop drawing; summarize the run if it has ended."""
        if self._live is not None:
            self._live.stop()
        if self.state.finished is not None:
            num_bytes = sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file())
            self._say(summarize(self.state, num_bytes=num_bytes, shows_failures=self._live is None))
        self._log.close()

    def _say(self, text: str, *, is_shown: bool = True) -> None:
        if is_shown:  # neither markup nor wrapping: a line is a line
            self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
        with suppress(OSError):  # a full disk: the store says so, and ends the run
            self._log.write(f"{text}\n".encode(errors="replace"))

    def _render(self) -> RenderableType:
        """The current picture; between events the run's clock follows ours."""
        width, height = self._console.size
        with self._lock:
            is_running = self._offset is not None and self.state.finished is None
            now = time.monotonic() + (self._offset or 0.0) if is_running else self.state.seconds
            return render(self.state, now=max(now, self.state.seconds), width=width, height=height)


def open_run_view(directory: Path) -> RunView:
    """What a person sees of the run in `directory`."""
    path = directory / LOG_FILE
    try:
        log = open_log(path)
    except OSError as error:
        raise ConfigError(f"{path}: the log cannot be opened ({error.strerror or error}); move it away") from error
    return RunView(Console(), log, directory=directory)
