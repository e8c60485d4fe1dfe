"""Events of runs that are healthy, or ill in one way, and what the rules of health say about them."""

from collections.abc import Mapping, Sequence
from typing import Any

from freerun.events.events import (
    AnyEvent,
    CheckpointSaved,
    EngineReport,
    EvalFinished,
    GraderReport,
    GroupFinished,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsLoaded,
)
from freerun.events.health import Finding, examine
from freerun.events.metrics import RunState
from freerun.types import EngineStats, StepResult

STEP_SECONDS = 2.0
HEALTHY = {
    "reward": 1.0, "accuracy": 0.55, "completion_length": 20.0, "num_tokens": 1200.0, "entropy": 0.8,
    "equal_group_share": 0.3, "all_right_share": 0.2, "all_wrong_share": 0.1, "distinct_text_share": 0.9,
    "cut_off_share": 0.02, "empty_share": 0.0, "common_reward_share": 0.55, "common_reward": 5.0,
    "effective_sample_size": 0.97, "behaviour_weight_max": 1.6, "engine_trainer_kl": 1e-9, "grad_norm": 0.4,
    "skipped_updates": 0.0, "gate_closed_seconds": 0.2,
}  # fmt: skip


def a_start(**changes: Any) -> RunStarted:
    facts: dict[str, Any] = {
        "seconds": 0.0, "name": "r", "directory": "runs/r", "num_steps": 40, "version": 0, "max_staleness": 4,
        "group_size": 8, "prompts_per_step": 8, "grade_limit_seconds": 10.0,
    }  # fmt: skip
    return RunStarted(**(facts | changes))


def a_step(version: int, metrics: Mapping[str, float] | None = None, **changes: Any) -> StepFinished:
    """One that ended `STEP_SECONDS` after the one before; `metrics` differ from those of a healthy step."""
    left_out = changes.get("without", ())
    known = {name: value for name, value in (HEALTHY | dict(metrics or {})).items() if name not in left_out}
    counts = changes.get("staleness_counts", {0: 30, 1: 20, 2: 10, 4: 4})
    return StepFinished(
        seconds=version * STEP_SECONDS,
        result=StepResult(version=version, metrics=known, staleness_counts=counts),
        groups=(),
        step_seconds=changes.get("step_seconds", STEP_SECONDS - changes.get("wait_seconds", 0.1)),
        wait_seconds=changes.get("wait_seconds", 0.1),
    )


def an_eval(version: int, accuracy: float, *, error: float = 0.05, seconds: float | None = None) -> EvalFinished:
    return EvalFinished(
        seconds=version * STEP_SECONDS if seconds is None else seconds,
        version=version,
        accuracy=accuracy,
        accuracy_low=accuracy - error,
        accuracy_high=accuracy + error,
        num_prompts=64,
        num_samples=4,
        num_failed=0,
        mean_length=20.0,
    )


def an_end(version: int = 20, outcome: Any = "finished") -> RunFinished:
    return RunFinished(
        seconds=version * STEP_SECONDS, outcome=outcome, version=version, model_directory="runs/r/model"
    )


def grades(num_graded: int, *, num_failed: int = 0, slowest_seconds: float = 0.1) -> GraderReport:
    return GraderReport(
        seconds=1.0,
        worker="grader-0",
        num_graded=num_graded,
        num_failed=num_failed,
        busy_seconds=1.0,
        slowest_seconds=slowest_seconds,
        up_seconds=5.0,
    )


def steps(
    number: int, metrics: Mapping[str, float] | None = None, *, first: int = 1, **changes: Any
) -> list[AnyEvent]:
    """Steps whose weights were loaded at once."""
    events: list[AnyEvent] = []
    for version in range(first, first + number):
        step = a_step(version, metrics, **changes)
        events += [step, WeightsLoaded(seconds=step.seconds, version=version, checksum="")]
    return events


def healthy_run(num_steps: int = 20) -> list[AnyEvent]:
    """Learns, with everything that a real run emits."""
    events: list[AnyEvent] = [a_start(), an_eval(0, 0.4)]
    for version in range(1, num_steps + 1):
        now = version * STEP_SECONDS
        stats = EngineStats(
            version=version, num_tokens=1300 * version, num_steps=90 * version, busy_seconds=1.5 * version,
            num_loads=version, num_recomputed_tokens=100 * version,
        )  # fmt: skip
        events += [
            EngineReport(seconds=now, worker="rollout-0", stats=stats),
            *(GroupFinished(seconds=now, ordinal=8 * version + i, outcome="buffered") for i in range(8)),
            grades(64 * version),
            *steps(1, first=version),
        ]
        if version % 10 == 0:
            events.append(an_eval(version, 0.4 + version / 100))
            events.append(CheckpointSaved(seconds=now, version=version, directory=f"runs/r/checkpoints/{version}"))
    return events


def state_after(events: Sequence[AnyEvent]) -> RunState:
    state = RunState()
    for event in events:
        state(event)
    return state


def findings(events: Sequence[AnyEvent], *, now: float | None = None) -> dict[str, Finding]:
    """By rule; `now` is the last event's time unless said."""
    state = state_after(events)
    return {finding.rule: finding for finding in examine(state, state.seconds if now is None else now)}
