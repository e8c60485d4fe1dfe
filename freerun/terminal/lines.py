"""A run as plain text: log lines of events, the closing summary, and the progress of an evaluation."""

import shlex
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rich.console import Console

from freerun.events.accuracy import percent, percent_within
from freerun.events.best import best_eval
from freerun.events.events import (
    AnyEvent,
    CheckpointSaved,
    EvalFinished,
    EvalSkipped,
    GroupFinished,
    Notice,
    PageOpened,
    RunFinished,
    RunStarted,
    SftStep,
    StepFinished,
    WorkerDied,
)
from freerun.events.health import Finding, examine
from freerun.events.metrics import RunState, failure_kind
from freerun.events.run_files import describe_bytes
from freerun.model.adapter_directory import is_adapter
from freerun.terminal.facts import Fact, facts, position
from freerun.terminal.health_lines import closing_lines, count_levels, summary_lines
from freerun.terminal.page_lines import describe_page, page_later
from freerun.terminal.wording import brief, count, duration, printable_block

LINE_SECONDS = 5.0


def describe_event(state: RunState, event: AnyEvent) -> str:
    """The log line of an event, given the state after it; empty if the event is not logged."""
    match event:
        case RunStarted():
            begin = f"resumed at step {event.version}" if event.version else "started"
            begin = f"resumed at SFT step {event.sft_step}" if event.sft_step else begin
            plan = f"  {event.num_steps} steps  max staleness {event.max_staleness}" if event.num_steps else ""
            return f"{begin}  run {event.name}{plan}  {event.directory}"
        case SftStep() if not _is_shown(state.sft):
            return ""
        case SftStep() | StepFinished():
            at = position(state, event.seconds)
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
        case PageOpened():
            return describe_page(event, state.directory)
        case CheckpointSaved():
            return f"checkpoint {event.version} saved  {event.directory}"
        case WorkerDied():
            return f"worker {event.worker} died{', restarted' if event.is_restarted else ''}: {event.reason}"
        case GroupFinished(outcome="failed"):
            return _failure(state, event)
        case RunFinished():
            at = position(state, event.seconds)
            return f"{event.outcome} at {at.label}{f': {brief(event.reason)}' if event.reason else ''}"
        case _:
            return ""


def summarize(
    state: RunState,
    *,
    num_bytes: int = 0,
    kept: Collection[int] | None = None,
    shows_failures: bool = False,
    unfinished: str = "still running",
    next_command: str = "",
) -> str:
    """The closing summary of a run whose directory takes `num_bytes`; plain text with aligned lines.

    `kept` are the versions with a checkpoint, if known. If failures were shown before, their tracebacks are not
    repeated. `unfinished` describes a run that has not ended; `next_command` replaces the usual suggested
    command.
    """
    saved = f"{state.checkpoint.directory}/model" if state.checkpoint else ""
    model = state.finished.model_directory if state.finished else saved
    findings = examine(state, state.seconds)
    told = [
        Fact("outcome", summary=_outcome(state, count_levels(findings), unfinished)),
        *facts(state),
        Fact("model", summary=model or "no checkpoint was written"),
        Fact("best", summary=_best(state, kept)),
        Fact("in full", summary=_reason_in_full(state, shows_failures)),
        Fact("disk", summary=f"{describe_bytes(num_bytes)} in {state.directory}" if num_bytes else ""),
        Fact("view", summary=page_later(state.directory) if state.directory else ""),
        Fact("next", summary=next_command or _next_command(state, findings)),
    ]
    lines = [f"{fact.name:<11}{printable_block(fact.summary)}" for fact in told if fact.summary]
    health = [f"{'' if number else 'health':<11}{line}" for number, line in enumerate(summary_lines(findings))]
    return "\n".join([*lines[:-1], *health, lines[-1], *closing_lines(findings)])


def _best(state: RunState, kept: Collection[int] | None) -> str:
    """The best evaluated version that is available, and its location."""
    best = best_eval(state.evals, kept=kept)
    if best is None or kept is None or len(state.evals) < 2:
        return ""
    where = f"{state.directory}/checkpoints/step-{best.version}/model"
    if best.version not in kept:
        where = "the model that the run began with"
    return f"held-out {percent(best.accuracy)} at version {best.version}: {where}"


def _outcome(state: RunState, health: str, unfinished: str) -> str:
    """How and why the run ended, in one sentence; without a reason, the number of health findings."""
    outcome = state.finished.outcome if state.finished else unfinished
    if state.finished and state.finished.reason:
        return f"{outcome}: {brief(state.finished.reason)}"
    return f"{outcome}, with {health}" if health else outcome


def _reason_in_full(state: RunState, shows_failures: bool) -> str:
    """The traceback or log of what ended the run, unless it has been shown."""
    reason = state.finished.reason.strip() if state.finished else ""
    is_shown = shows_failures and failure_kind(reason) in state.failures
    return reason if "\n" in reason and not is_shown else ""


def _next_command(state: RunState, findings: Sequence[Finding]) -> str:
    directory = shlex.quote(state.directory)
    if state.finished is None or state.finished.outcome != "finished":
        # A run's directory has its own resolved recipe, with the name and every override it was started with.
        return (
            f"freerun serve {directory}/config.toml --resume"
            if state.is_live
            else f"freerun train {directory} --resume"
        )
    if any(finding.rule == "nothing_learned" for finding in findings):
        return f"freerun show {directory} --order reward"
    if not state.is_sft_only:
        return f"freerun eval {directory}"
    model = shlex.quote(state.finished.model_directory)
    is_merged = not is_adapter(Path(state.finished.model_directory))
    return f"freerun train RECIPE --model.path {model}" if is_merged else f"freerun model merge {model} DIR"


def _failure(state: RunState, event: GroupFinished) -> str:
    """In full the first time; then one line for every tenfold number of failures with the same cause."""
    number = state.failures[failure_kind(event.reason)]
    if number == 1:
        return f"group {event.ordinal} failed: {event.reason}"
    is_shown = number % 10 == 0 and number == 10 ** (len(str(number)) - 1)
    return f"{count(number)} groups failed like this: {brief(event.reason)}" if is_shown else ""


def _is_shown(steps: Sequence[SftStep]) -> bool:
    """Whether a step of SFT is logged: measurements, every tenth of SFT, and every few seconds."""
    last = steps[-1]
    is_late = len(steps) > 1 and last.seconds // LINE_SECONDS > steps[-2].seconds // LINE_SECONDS
    return is_late or last.held_out_loss is not None or last.step % max(1, last.num_steps // 10) == 0


def _join(*words: str) -> str:
    """Join the parts that are known."""
    return "  ".join(filter(None, words))


class ProgressLines:
    """Progress lines for long work without a terminal; silent on a terminal, which has a bar."""

    def __init__(self, console: Console, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._total = total
        self._clock = clock
        self._began = self._last_line = clock()

    def __call__(self, done: int, what: str) -> None:
        """`done` of the total is finished; `what` describes it."""
        now = self._clock()
        if self._console.is_terminal or now - self._last_line < LINE_SECONDS or done >= self._total:
            return
        self._last_line = now
        left = (now - self._began) / max(1, done) * (self._total - done)
        line = f"{time.strftime('%H:%M:%S')}  {done}/{self._total} {what}  {duration(left)} left"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
