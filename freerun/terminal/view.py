"""Shows a run: a live view on a terminal, lines elsewhere; lines and the closing summary in a log file.

An event only updates the state; rich's own thread draws the terminal four times a second.
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
from freerun.events.events import AnyEvent, Notice, PageOpened
from freerun.events.metrics import RunState
from freerun.events.opening import recorded_state
from freerun.events.page_link import read_link
from freerun.events.reader import RunReader
from freerun.events.run_files import disk_bytes, saved_versions
from freerun.events.schema import store_file
from freerun.processes.worker_process import open_log
from freerun.terminal.health_lines import HealthLog
from freerun.terminal.lines import describe_event, summarize
from freerun.terminal.page_lines import describe_page
from freerun.terminal.panel import OWN_HINT, render
from freerun.terminal.wording import printable_block, wrapped

FRAMES_PER_SECOND = 4
LOG_FILE = "log.txt"
"""Log in the run directory: everything that is printed, of all sessions."""


def _time_of_day() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


class RunView:
    """A listener that shows a run until it is closed; the last view and the summary remain."""

    def __init__(
        self,
        console: Console,
        log: RawIOBase | None,
        *,
        directory: Path,
        now: Callable[[], str] = _time_of_day,
        hint: str = OWN_HINT,
    ) -> None:
        self.state = RunState()
        self._console = console
        self._log = log
        """Unbuffered: what a full disk refuses is lost, and not retried when the file is closed."""
        self._directory = directory
        self._now = now
        self._hint = hint
        self._health = HealthLog()
        self._offset: float | None = None
        # rich's thread renders the state while the controller's thread updates it.
        self._lock = threading.Lock()
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, get_renderable=self._render, refresh_per_second=FRAMES_PER_SECOND)
            self._live.start()

    def __call__(self, event: AnyEvent) -> None:
        with self._lock:
            self.state(event)
            self._offset = event.seconds - time.monotonic()
        lines = [describe_event(self.state, event), *self._health(self.state, event)]
        is_link = isinstance(event, PageOpened) and self._console.is_terminal
        is_shown = self._live is None or isinstance(event, Notice)  # above the live view
        for line in filter(None, lines):
            self._say(f"{self._now()}  {printable_block(line)}", is_shown=is_shown and not is_link)
        if isinstance(event, PageOpened) and is_link:
            # The token is only for the user at the terminal, not for logs or redirected output.
            link = read_link(self._directory)
            self._print(f"{self._now()}  {describe_page(event, self.state.directory, link)}")

    def rewind(self, version: int, *, seconds: float = 0.0) -> None:
        """Load the state of the sessions before from the store: the run began with them."""
        if not store_file(self._directory).is_file():
            return
        with RunReader(self._directory) as reader:
            self.begin_with(recorded_state(reader))
        self.state.failures.clear()  # the first failure of each cause is shown in full in every session

    def begin_with(self, state: RunState, *, seconds_ago: float | None = None) -> None:
        """Show this state from now on, without lines for earlier events; its newest event was `seconds_ago`."""
        with self._lock:
            self.state = state
            self._offset = None if seconds_ago is None else state.seconds + seconds_ago - time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the time, above the live view if there is one."""
        self._say(f"{self._now()}  {printable_block(text)}")

    def close(self, *, unfinished: str = "") -> None:
        """Stop drawing; print a summary if the run has ended, or if `unfinished` describes it."""
        if self._live is not None:
            self._live.stop()
        if self.state.finished is not None or unfinished:
            summary = summarize(
                self.state,
                num_bytes=disk_bytes(self._directory),
                kept=saved_versions(self._directory / "checkpoints"),
                shows_failures=self._live is None,
                unfinished=unfinished,
            )
            is_wrapped = self._console.is_terminal
            self._print(wrapped(summary, self._console.width) if is_wrapped else summary)
            self._say(summary, is_shown=False)
        if self._log is not None:
            self._log.close()

    def _say(self, text: str, *, is_shown: bool = True) -> None:
        if is_shown:
            self._print(text)
        if self._log is None:
            return
        with suppress(OSError):  # on a full disk the store reports the error and ends the run
            self._log.write(f"{text}\n".encode(errors="replace"))

    def _print(self, text: str) -> None:
        """Print text without markup or wrapping."""
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _render(self) -> RenderableType:
        """The current view; between events the run's clock advances with ours."""
        width, height = self._console.size
        with self._lock:
            is_running = self._offset is not None and self.state.finished is None
            now = time.monotonic() + (self._offset or 0.0) if is_running else self.state.seconds
            now = max(now, self.state.seconds)
            return render(self.state, now=now, width=width, height=height, hint=self._hint)


def open_run_view(directory: Path) -> RunView:
    """Open the view of the run in `directory`."""
    path = directory / LOG_FILE
    try:
        log = open_log(path)
    except OSError as error:
        raise ConfigError(f"{path}: the log cannot be opened ({error.strerror or error}); move it away") from error
    return RunView(Console(), log, directory=directory)
