"""What the trainer cannot know about a step: how full the engines were, how long the gate was closed ..."""

from collections.abc import Sequence

import msgspec

from freerun.controller.stages import RunContext
from freerun.events.events import QueueCounts
from freerun.types import Group, StepResult

METRICS = frozenset(
    {"gate_closed_seconds", "batches_ahead", "slot_occupancy", "num_rollout_workers", "grade_seconds"}
)
"""The metrics that are added. A replay has no controller and lacks them."""


class StepFacts:
    """Adds the controller's metrics to each step's result."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._gate_closed_before = 0.0

    def added_to(
        self, result: StepResult, groups: Sequence[Group], queues: QueueCounts, *, loading_seconds: float
    ) -> StepResult:
        """The result with the metrics and the phase "loading", which precedes the step."""
        gate_closed = queues.gate_closed_seconds - self._gate_closed_before
        self._gate_closed_before = queues.gate_closed_seconds
        metrics = result.metrics | {"gate_closed_seconds": gate_closed} | self._run.freshness.metrics()
        if (occupancy := self._run.slots.occupancy.since_last()) is not None:
            metrics["slot_occupancy"] = occupancy
        if self._run.recipe.engine.is_elastic:
            metrics["num_rollout_workers"] = self._run.stages.generator.num_ready
        known = [self._run.grade_seconds.pop(group.ordinal, None) for group in groups]
        if grade_seconds := [seconds for seconds in known if seconds is not None]:
            metrics["grade_seconds"] = sum(grade_seconds) / len(grade_seconds)
        phases = (("loading", loading_seconds), *result.phases)
        return msgspec.structs.replace(result, metrics=metrics, phases=phases)
