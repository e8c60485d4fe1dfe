"""The interface of a tracker: an object in its own process that receives the events of a run.

    start(run) ─► event(event), ... ─► close(outcome)

It receives every event of the run in order, and data derived from them: a `Measured` after each step and
evaluation, an `AlarmRaised` when a health rule raises an alarm, and a `SampleTable` if the recipe asks for
them. Steps come in order and once. A run that was killed and resumed repeats steps; then the reporter is
closed, and a new one is started with the next `attempt` and receives everything from the first event.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from freerun.events.events import AnyEvent, Event
from freerun.events.health import Finding
from freerun.events.schema import TrajectoryRow

STEP_KEY = "freerun/step"
"""The name of our step, for trackers that count steps by themselves."""
SFT_STEP_KEY = "freerun/sft_step"


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The run that is reported."""

    name: str
    directory: str
    project: str
    """`report.project`."""
    settings: Mapping[str, Any]
    """Settings of config.toml by dotted key, such as `train.lr`."""
    version: str
    """Version of freerun."""
    key: str
    """Identifies this attempt among all runs on all machines."""
    attempt: int
    """Above 1 if the run was reported before, and everything is reported again."""
    is_resumed: bool
    """Whether it continues what was closed under the same key; only for a reporter that `continues`."""
    started: float
    """Unix time at which the run's clock was 0, as if it had never been paused."""

    @property
    def title(self) -> str:
        """The name to display."""
        return self.name if self.attempt == 1 else f"{self.name} ({self.attempt})"


class Measured(Event, frozen=True, kw_only=True, tag="measured"):
    """Numbers of one step, evaluation or supervised step, by name."""

    step: int
    """The version that the step made or that was evaluated; for SFT, the supervised step."""
    values: dict[str, float]
    is_sft: bool = False


class SampleTable(Event, frozen=True, kw_only=True, tag="sample_table"):
    """Some of the trajectories of a step; their text is hostile."""

    step: int
    samples: tuple[TrajectoryRow, ...]


class AlarmRaised(Event, frozen=True, kw_only=True, tag="alarm_raised"):
    """A health rule has raised an alarm."""

    step: int
    finding: Finding


Reported = AnyEvent | Measured | SampleTable | AlarmRaised


class Reporter(Protocol):
    """A tracker. If its attribute `continues` is true, it can append to what it closed before."""

    def start(self, run: RunInfo) -> None:
        """Called once, first."""

    def event(self, event: Reported) -> None:
        """Called with each event, in order."""

    def close(self, outcome: str) -> None:
        """Send the rest: the run is finished, interrupted, failed or crashed, or no longer followed."""


def sample_cells(table: SampleTable) -> tuple[list[str], list[list[str | float]]]:
    """Header and rows of a table of samples."""
    head = ["step", "prompt", "completion", "answer", "reward", "right"]
    rows: list[list[str | float]] = [
        [float(table.step), s.prompt, s.completion, s.answer, s.reward, "yes" if s.is_correct else "no"]
        for s in table.samples
    ]
    return head, rows
