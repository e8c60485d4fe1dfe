"""Watching a run: a live view on a terminal, one line per step elsewhere.

Views are listeners that own a `RunState`; the summary at the end is made from the same state. An event only
updates the state: the terminal is drawn by rich's own thread, four times a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.live import Live

from freerun.errors import ConfigError
from freerun.events.accuracy import percent, percent_within
from freerun.events.events import (
    AnyEvent,
    CheckpointSaved,
    EvalFinished,
    EvalSkipped,
    GroupFinished,
    Notice,
    RunFinished,
    RunStarted,
    SftStep,
    StepFinished,
    WorkerDied,
)
from freerun.events.metrics import RunState, failure_kind
from freerun.processes.worker_process import open_log
from freerun.terminal.panel import render
from freerun.terminal.summary import describe
from freerun.terminal.wording import brief, count, duration, printable_block

FRAMES_PER_SECOND = 4
LOG_FILE = "log.txt"
"""In the run directory: everything that is printed, of all sessions."""
SFT_LINE_SECONDS = 5.0


def _time_of_day() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


class View(Protocol):
    """A listener that shows a run until it is closed."""

    state: RunState
    shows_failures: bool
    """Whether the reason of a failed group was shown in full."""

    def __call__(self, event: AnyEvent) -> None: ...

    def say(self, text: str) -> None:
        """Show text that is not an event: the summary."""
        ...

    def close(self) -> None: ...


def open_run_view(directory: Path) -> RunView:
    """What a person sees of the run in `directory`."""
    path = directory / LOG_FILE
    try:
        log = open_log(path)
    except OSError as error:
        raise ConfigError(f"{path}: the log cannot be opened ({error.strerror or error}); move it away") from error
    return RunView(make_view(Console()), log, directory=directory)


def make_view(console: Console) -> View:
    """The live view where there is a terminal to draw on, else lines."""
    is_drawable = console.is_terminal and not console.is_dumb_terminal
    return TerminalView(console).start() if is_drawable else PlainView(console)


class TerminalView:
    """Draws the state in place; the last picture stays when it is left."""

    shows_failures = False

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = RunState()
        self._console = console
        self._clock = clock
        self._offset: float | None = None
        # rich's thread builds the picture while the controller's updates the state.
        self._lock = threading.Lock()
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=FRAMES_PER_SECOND)

    def __call__(self, event: AnyEvent) -> None:
        with self._lock:
            self.state(event)
            self._offset = event.seconds - self._clock()

    def start(self) -> Self:
        self._live.start()
        return self

    def close(self) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def render(self) -> RenderableType:
        """The current view; between events the run's clock follows ours."""
        width, height = self._console.size
        with self._lock:
            is_running = self._offset is not None and self.state.finished is None
            now = self._clock() + (self._offset or 0.0) if is_running else self.state.seconds
            return render(self.state, now=max(now, self.state.seconds), width=width, height=height)


class PlainView:
    """Prints a line with the time of day for everything worth logging."""

    shows_failures = True

    def __init__(self, console: Console, *, now: Callable[[], str] = _time_of_day) -> None:
        self.state = RunState()
        self._console = console
        self._now = now

    def __call__(self, event: AnyEvent) -> None:
        self.state(event)
        if line := describe_event(self.state, event):
            self.say(f"{self._now()}  {printable_block(line)}")

    def say(self, text: str) -> None:
        # Neither markup nor wrapping: a log line is a line.
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        pass


class RunView:
    """A view, the same lines in a log file, and the summary at the end in both."""

    def __init__(self, view: View, log: RawIOBase, *, directory: Path) -> None:
        self.state = view.state
        self._view = view
        self._log = log
        """Unbuffered: what a full disk refuses is lost, and not tried again when the file is closed."""
        self._directory = directory

    def __call__(self, event: AnyEvent) -> None:
        self._view(event)
        if line := describe_event(self.state, event):
            self._write(f"{_time_of_day()}  {printable_block(line)}")

    def close(self) -> None:
        """Stop drawing; sum the run up if it has ended."""
        self._view.close()
        if self.state.finished is not None:
            num_bytes = sum(path.stat().st_size for path in self._directory.rglob("*") if path.is_file())
            summary = describe(self.state, num_bytes=num_bytes, shows_failures=self._view.shows_failures)
            self._view.say(summary)
            self._write(summary)
        self._log.close()

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a full disk: the store says so, and ends the run
            self._log.write(f"{text}\n".encode(errors="replace"))


def describe_event(state: RunState, event: AnyEvent) -> str:
    """The log line of an event, given the state after it; empty for those that are not worth one."""
    match event:
        case RunStarted():
            begin = f"resumed at step {event.version}" if event.version else "started"
            begin = f"resumed at SFT step {event.sft_step}" if event.sft_step else begin
            plan = f"  {event.num_steps} steps  max staleness {event.max_staleness}" if event.num_steps else ""
            return f"{begin}  run {event.name}{plan}  {event.directory}"
        case SftStep():
            return "  ".join(_sft_words(state, event)) if _is_shown(state.sft) else ""
        case StepFinished():
            return "  ".join(_step_words(state, event))
        case EvalFinished():
            failed = f"  {event.num_failed} failed" if event.num_failed else ""
            size = f"{event.num_prompts} prompts x {event.num_samples}"
            accuracy = percent_within(event.accuracy, event.accuracy_low, event.accuracy_high)
            return f"held-out {accuracy} at version {event.version}  ({size}){failed}"
        case EvalSkipped():
            return f"no held-out accuracy of version {event.version}: {event.reason}"
        case Notice():
            return event.text
        case CheckpointSaved():
            return f"checkpoint {event.version} saved  {event.directory}"
        case WorkerDied():
            return f"worker {event.worker} died{', restarted' if event.is_restarted else ''}: {event.reason}"
        case GroupFinished(outcome="failed"):
            return _failure(state, event)
        case RunFinished():
            reason = f": {brief(event.reason)}" if event.reason else ""
            sft = state.sft[-1] if state.sft and not state.num_steps else None
            place = f"SFT step {sft.step}/{sft.num_steps}" if sft else f"step {event.version}/{state.num_steps}"
            return f"{event.outcome} at {place}{reason}"
        case _:
            return ""


def _failure(state: RunState, event: GroupFinished) -> str:
    """In full the first time; then a line for every tenfold number of failures of one cause."""
    number = state.failures[failure_kind(event.reason)]
    if number == 1:
        return f"group {event.ordinal} failed: {event.reason}"
    is_shown = number % 10 == 0 and number == 10 ** (len(str(number)) - 1)
    return f"{count(number)} groups failed like this: {brief(event.reason)}" if is_shown else ""


def _is_shown(steps: Sequence[SftStep]) -> bool:
    """A line for every measurement, every tenth of SFT, and every few seconds."""
    last = steps[-1]
    is_late = len(steps) > 1 and last.seconds // SFT_LINE_SECONDS > steps[-2].seconds // SFT_LINE_SECONDS
    return is_late or last.held_out_loss is not None or last.step % max(1, last.num_steps // 10) == 0


def _sft_words(state: RunState, event: SftStep) -> list[str]:
    words = [f"SFT {event.step}/{event.num_steps}"]
    if event.loss is not None:
        words.append(f"loss {event.loss:.4f}")
    if event.held_out_loss is not None:
        words.append(f"held-out loss {event.held_out_loss:.4f}")
    if event.step < event.num_steps and (left := state.sft_seconds_left) is not None:
        words.append(f"{duration(left)} left")
    return words


def _step_words(state: RunState, event: StepFinished) -> list[str]:
    """The parts of a step's line; what is not known is left out."""
    metrics, counts = event.result.metrics, event.result.staleness_counts
    words = [f"step {event.result.version}/{state.num_steps}"]
    if "reward" in metrics:
        words.append(f"reward {metrics['reward']:.2f}")
    if state.evals:
        words.append(f"held-out {percent(state.evals[-1].accuracy)}")
    if "completion_length" in metrics:
        words.append(f"length {metrics['completion_length']:.1f}")
    if counts:
        mean = sum(value * n for value, n in counts.items()) / sum(counts.values())
        words.append(f"staleness {mean:.1f}/{max(counts)} (bound {state.max_staleness})")
    if state.generated_tokens_per_second is not None:
        words.append(f"gen {count(state.generated_tokens_per_second)} tok/s")
    if state.trained_tokens_per_second is not None:
        words.append(f"train {count(state.trained_tokens_per_second)} tok/s")
    words.append(f"waited {duration(event.wait_seconds)}")
    if state.steps[-1].why_no_update:
        words.append(f"no update: {state.steps[-1].why_no_update}")
    if state.version < state.num_steps and (left := state.eta_seconds(event.seconds)) is not None:
        words.append(f"{duration(left)} left")
    return words
