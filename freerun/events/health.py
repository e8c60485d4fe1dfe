"""The health of a run, in sentences: each rule is a pure function of the run's state.

Terminal, log, summary, page, report and trackers use the same sentence. Each rule's limits are next to it. Rules
about metrics look at the last `WINDOW` steps, and say nothing before `MIN_STEPS` steps unless the run has ended. A
metric that a step does not have is ignored, never treated as 0.
"""

from collections.abc import Callable

import msgspec

from freerun.events import learning_rules as learning
from freerun.events import running_rules as running
from freerun.events.metrics import RunState
from freerun.events.rule_window import Complaint, Severity

LEVELS: tuple[Severity, ...] = ("alarm", "warn", "info")
"""Severities, the worst first."""
RULES: dict[str, Callable[[RunState, float], Complaint | None]] = {
    "bound": running.bound,
    "nothing_learned": learning.nothing_learned,
    "held_out_fell": learning.held_out_fell,
    "equal_groups": learning.equal_groups,
    "no_update": learning.no_update,
    "effective_sample_size": learning.effective_sample_size,
    "gradient": learning.gradient,
    "disagreement": learning.disagreement,
    "empty": learning.empty,
    "cut_off": learning.cut_off,
    "variety": learning.variety,
    "entropy": learning.entropy,
    "length": learning.length,
    "held_out_gap": learning.held_out_gap,
    "one_part": learning.one_part,
    "grader": learning.grader,
    "waste": running.waste,
    "weights": running.weights,
    "stall": running.stall,
    "safety": running.safety,
    "deaths": running.deaths,
    "limit": running.limit,
    "at_the_bound": running.at_the_bound,
}


class Finding(msgspec.Struct, frozen=True):
    """Something that a user should know about a run."""

    rule: str
    level: Severity
    text: str
    advice: str
    """What to change; empty if there is nothing to change."""
    evidence: str
    """The part of the page that shows the evidence."""


def examine(state: RunState, now: float) -> tuple[Finding, ...]:
    """The findings about the run, worst first; `now` is on the run's clock."""
    found = [(rule, finding) for rule, look in RULES.items() if (finding := look(state, now)) is not None]
    findings = [Finding(rule, level, text, advice, evidence) for rule, (level, text, advice, evidence) in found]
    return tuple(sorted(findings, key=lambda finding: LEVELS.index(finding.level)))
