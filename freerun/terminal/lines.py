"""A run in plain text: a line for each event worth logging, the summary at its end; progress of an evaluation."""

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from freerun.events.accuracy import percent_within
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
from freerun.model.adapter_directory import is_adapter
from freerun.terminal.facts import Fact, facts, position
from freerun.terminal.wording import brief, count, duration, printable_block

LINE_SECONDS = 5.0


def describe_event(state: RunState, event: AnyEvent) -> str:
    """The log line of an event, given the state after it; empty for those that are not worth one."""
    at = position(state, event.seconds)
    match event:
        case RunStarted():
            begin = f"resumed at step {event.version}" if event.version else "started"
            begin = f"resumed at SFT step {event.sft_step}" if event.sft_step else begin
            plan = f"  {event.num_steps} steps  max staleness {event.max_staleness}" if event.num_steps else ""
            return f"{begin}  run {event.name}{plan}  {event.directory}"
        case SftStep() if not _is_shown(state.sft):
            return ""
        case SftStep() | StepFinished():
            return _join(at.label, *(fact.line for fact in facts(state)), at.left)
        case EvalFinished():
            failed = f"{event.num_failed} failed" if event.num_failed else ""
            accuracy = percent_within(event.accuracy, event.accuracy_low, event.accuracy_high)
            size = f"({event.num_prompts} prompts x {event.num_samples})"
            return _join(f"held-out {accuracy} at version {event.version}", size, failed)
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
            return f"{event.outcome} at {at.label}{f': {brief(event.reason)}' if event.reason else ''}"
        case _:
            return ""


def summarize(state: RunState, *, num_bytes: int = 0, shows_failures: bool = False) -> str:
    """The closing summary of a run, whose directory takes `num_bytes`; plain text, lines aligned.

    Where the lines above it show failures, their traceback is not repeated.
    """
    model = state.finished.model_directory if state.finished else ""
    size = f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
    told = [
        Fact("outcome", summary=_outcome(state, shows_failures)),
        *facts(state),
        Fact("model", summary=model or "no checkpoint was written"),
        Fact("disk", summary=f"{size} in {state.directory}" if num_bytes else ""),
        Fact("next", summary=_next_command(state)),
    ]
    return "\n".join(f"{fact.name:<11}{printable_block(fact.summary)}" for fact in told if fact.summary)


def _outcome(state: RunState, shows_failures: bool) -> str:
    if state.finished is None:
        return "still running"
    reason = state.finished.reason
    if shows_failures and failure_kind(reason) in state.failures:
        reason = brief(reason)
    return f"{state.finished.outcome}{f': {reason}' if reason else ''}"


def _next_command(state: RunState) -> str:
    directory = shlex.quote(state.directory)
    if state.finished is None or state.finished.outcome != "finished":
        # The run's own resolved recipe: it has the name and every override the run was started with.
        return f"freerun train {directory}/config.toml --resume"
    if not state.is_sft_only:
        return f"freerun eval {directory}"
    model = shlex.quote(state.finished.model_directory)
    is_merged = not is_adapter(Path(state.finished.model_directory))
    return f"freerun train RECIPE --model.path {model}" if is_merged else f"freerun model merge {model} DIR"


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
    is_late = len(steps) > 1 and last.seconds // LINE_SECONDS > steps[-2].seconds // LINE_SECONDS
    return is_late or last.held_out_loss is not None or last.step % max(1, last.num_steps // 10) == 0


def _join(*words: str) -> str:
    """What is not known is left out."""
    return "  ".join(filter(None, words))


class ProgressLines:
    """Long work without a terminal for a bar: call it whenever more is done; silent on a terminal."""

    def __init__(self, console: Console, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._total = total
        self._clock = clock
        self._began = self._last_line = clock()

    def __call__(self, done: int, what: str) -> None:
        """`done` of the total is done; `what` it is, in words."""
        now = self._clock()
        if self._console.is_terminal or now - self._last_line < LINE_SECONDS or done >= self._total:
            return
        self._last_line = now
        left = (now - self._began) / max(1, done) * (self._total - done)
        line = f"{time.strftime('%H:%M:%S')}  {done}/{self._total} {what}  {duration(left)} left"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
