"""What a tracker is here: an object that is told of a run, in its own process.

    start(run) ─► event(event), ... ─► close(outcome)

It gets every event of the run in order, and what follows from them: after each step and evaluation a `Measured`,
when a rule of health raises the alarm an `AlarmRaised`, and a `SampleTable` if the recipe asks for them. Steps
come in order and once. A run that was killed and resumed repeats steps; then the reporter is closed, and a new
one is started with the next `attempt` and gets everything from the first event.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from freerun.events.events import AnyEvent, Event
from freerun.events.health import Finding
from freerun.events.schema import TrajectoryRow

STEP_KEY = "freerun/step"
"""The name of our step, where a tracker counts steps by itself."""
SFT_STEP_KEY = "freerun/sft_step"


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The run that is reported."""

    name: str
    directory: str
    project: str
    """`report.project`."""
    settings: Mapping[str, Any]
    """Those of config.toml, by dotted key: `train.lr`."""
    version: str
    """Of freerun."""
    key: str
    """Names this attempt among all runs of all machines."""
    attempt: int
    """Above 1 if the run was reported before, and everything comes again."""
    is_resumed: bool
    """Whether it continues what was closed under the same key; only for a reporter that `continues`."""
    started: float
    """Unix time at which the run's clock was 0, as if it had never been stopped."""

    @property
    def title(self) -> str:
        """The name to show."""
        return self.name if self.attempt == 1 else f"{self.name} ({self.attempt})"


class Measured(Event, frozen=True, kw_only=True, tag="measured"):
    """Numbers of one step, evaluation or supervised step, by name."""

    step: int
    """The version that the step made or that was evaluated; of SFT, the supervised step."""
    values: dict[str, float]
    is_sft: bool = False


class SampleTable(Event, frozen=True, kw_only=True, tag="sample_table"):
    """Some of the trajectories that a step was trained on; their text is hostile."""

    step: int
    samples: tuple[TrajectoryRow, ...]


class AlarmRaised(Event, frozen=True, kw_only=True, tag="alarm_raised"):
    """A rule of health has begun to raise the alarm."""

    step: int
    finding: Finding


Reported = AnyEvent | Measured | SampleTable | AlarmRaised


class Reporter(Protocol):
    """A tracker. With an attribute `continues` that is true, it can append to what it closed before."""

    def start(self, run: RunInfo) -> None:
        """Called once, first."""

    def event(self, event: Reported) -> None:
        """Called with each event, in order."""

    def close(self, outcome: str) -> None:
        """Send what is left: the run is finished, interrupted, failed or crashed, or it is no longer followed."""


def sample_cells(table: SampleTable) -> tuple[list[str], list[list[str | float]]]:
    """Head and rows of a table of samples."""
    head = ["step", "prompt", "completion", "answer", "reward", "right"]
    rows: list[list[str | float]] = [
        [float(table.step), s.prompt, s.completion, s.answer, s.reward, "yes" if s.is_correct else "no"]
        for s in table.samples
    ]
    return head, rows
