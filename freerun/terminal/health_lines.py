"""The health of a run in a terminal: lines of the log, of the live view and of the closing summary.

    examine(state, now) ─► HealthLog      a line when a finding appears, gets worse or is over
                        ─► panel_lines    the worst ones, in the live view
                        ─► summary_lines  all, the worst first
                        ─► closing_lines  what users must not miss, at the very end

All use the sentences of `events/health.py`; their text may be hostile and is made printable here.
"""

from collections.abc import Sequence

from rich.text import Text

from freerun.events.events import AnyEvent, EvalFinished, RunFinished
from freerun.events.health import LEVELS, Finding, examine
from freerun.events.metrics import RunState
from freerun.events.rule_window import Severity, step_seconds
from freerun.terminal.wording import printable

EXAMINE_SECONDS = 1.0
"""Interval of health examinations, on the run's clock."""
OVER_SECONDS = 30.0
OVER_STEPS = 3
"""A finding is over when it was absent for both: an intermittent one is not reported again and again."""
LEVEL_STYLES: dict[Severity, str] = {"alarm": "bold red", "warn": "yellow", "info": "dim"}
VERDICTS = ("bound", "nothing_learned", "held_out_fell")
"""Rules about the result of the run: a summary ends with their findings."""


class _Told:
    """A finding that has been logged."""

    def __init__(self, finding: Finding, seconds: float) -> None:
        self.level = finding.level
        """The worst level that has been logged."""
        self.text = finding.text
        self.seen = seconds


class HealthLog:
    """Logs changes in the health of a run: call it with the state after each event."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._looked: float | None = None

    def __call__(self, state: RunState, event: AnyEvent) -> list[str]:
        """New lines; none for most events."""
        is_milestone = isinstance(event, EvalFinished | RunFinished)
        is_due = self._looked is None or not 0 <= event.seconds - self._looked < EXAMINE_SECONDS
        if not is_milestone and not is_due:
            return []
        self._looked = event.seconds
        lines = [line for finding in examine(state, event.seconds) if (line := self._tell(finding, event.seconds))]
        return lines if state.finished else [*lines, *self._end(state, event.seconds)]

    def _tell(self, finding: Finding, seconds: float) -> str:
        told = self._told.get(finding.rule)
        if told is not None and LEVELS.index(told.level) <= LEVELS.index(finding.level):
            told.text, told.seen = finding.text, seconds
            return ""
        self._told[finding.rule] = _Told(finding, seconds)
        return f"health: {describe(finding)}"

    def _end(self, state: RunState, seconds: float) -> list[str]:
        patience = max(OVER_SECONDS, OVER_STEPS * step_seconds(state)) if state.steps else OVER_SECONDS
        over = [rule for rule, told in self._told.items() if seconds - told.seen > patience]
        return [f"health: over: {printable(self._told.pop(rule).text)}" for rule in over]


def describe(finding: Finding) -> str:
    """One line: `alarm: what is wrong → what to do`."""
    advice = f" → {printable(finding.advice)}" if finding.advice else ""
    return f"{finding.level}: {printable(finding.text)}{advice}"


def panel_lines(state: RunState, now: float, *, max_rows: int) -> list[Text]:
    """The worst findings, one line each; a last line counts the others."""
    findings = examine(state, now)
    num_shown = len(findings) if len(findings) <= max_rows else max(0, max_rows - 1)
    lines = [
        Text.assemble(
            (f"{finding.level:<6}", LEVEL_STYLES[finding.level]),
            printable(finding.text),
            (f"  → {printable(finding.advice)}" if finding.advice else "", "dim"),
            no_wrap=True,
            overflow="ellipsis",
        )
        for finding in findings[:num_shown]
    ]
    if num_shown < len(findings) and max_rows > 0:
        lines.append(
            Text(f"      and {count_levels(findings[num_shown:])}", "dim", no_wrap=True, overflow="ellipsis")
        )
    return lines


def count_levels(findings: Sequence[Finding]) -> str:
    """`1 alarm, 2 warnings`; empty without findings."""
    nouns: dict[Severity, str] = {"alarm": "alarm", "warn": "warning", "info": "note"}
    numbers = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    return ", ".join(
        f"{number} {nouns[level]}{'s' if number > 1 else ''}" for level, number in numbers.items() if number
    )


def summary_lines(findings: Sequence[Finding]) -> list[str]:
    """All findings, worst first, each followed by its advice."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<6} {printable(finding.text)}")
        lines += [f"       → {printable(finding.advice)}"] if finding.advice else []
    return lines


def closing_lines(findings: Sequence[Finding]) -> list[str]:
    """What users must not miss: the model is worse than before, unchanged, or not to be trusted."""
    names: dict[Severity, str] = {"alarm": "ALARM", "warn": "WARNING", "info": "NOTE"}
    return [
        f"{names[finding.level]:<11}{printable(finding.text)}" for finding in findings if finding.rule in VERDICTS
    ]
