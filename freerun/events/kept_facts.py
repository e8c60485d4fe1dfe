"""What the state of a run keeps about a step, an evaluation and a grader."""

from dataclasses import dataclass

from freerun.events.events import (
    GraderReport,
)
from freerun.types import StepResult


@dataclass
class Step:
    """The facts kept about a training step."""

    seconds: float
    step_seconds: float
    wait_seconds: float
    result: StepResult

    @property
    def begin(self) -> float:
        """When the trainer began to wait for this step's batch."""
        return self.seconds - self.step_seconds - self.wait_seconds

    @property
    def num_tokens(self) -> float:
        return self.result.metrics.get("num_tokens", 0.0)

    @property
    def why_no_update(self) -> str:
        """Why the step did not change the weights; empty if it did, or if unknown."""
        metrics = self.result.metrics
        if "grad_norm" in metrics or "skipped_updates" not in metrics:
            return ""
        return (
            "the gradients were not finite" if metrics["skipped_updates"] else "every group's rewards were equal"
        )


@dataclass
class EvalMark:
    """An evaluation, with the metrics of the newest step at its end."""

    version: int
    accuracy: float
    metrics: dict[str, float]


@dataclass
class GraderTrack:
    """One grader's counters, including those of its earlier processes."""

    latest: GraderReport
    num_graded: int = 0
    num_failed: int = 0
    slowest_seconds: float = 0.0
    """The longest recent job; an old maximum is halved with each later report."""

    def report(self, report: GraderReport) -> None:
        is_new = report.up_seconds < self.latest.up_seconds
        self.num_graded += report.num_graded - (0 if is_new else self.latest.num_graded)
        self.num_failed += report.num_failed - (0 if is_new else self.latest.num_failed)
        self.slowest_seconds = max(report.slowest_seconds, self.slowest_seconds / 2)
        self.latest = report
