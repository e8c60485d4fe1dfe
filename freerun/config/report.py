"""Where a run is reported to, besides its own store."""

from dataclasses import dataclass

from freerun.config.section import Section, require
from freerun.config.values import CountOrNone, Seconds


@dataclass(frozen=True)
class ReportConfig(Section, name="report"):
    to: tuple[str, ...] = ()
    """Trackers: jsonl, tensorboard, wandb, trackio, mlflow, opentelemetry, those that other packages register, and
    your own as "module:class". Each has its own process, which cannot slow or end the run."""
    project: str = "freerun"
    """The project or experiment under which trackers show the run."""
    samples_every: CountOrNone = 0
    """Send a table of up to 16 trained completions after this many steps; 0 sends none."""
    wait_seconds: Seconds = 30.0
    """How long the end of a run waits for trackers to get the rest."""

    def check(self) -> None:
        require(all(self.to), "report.to holds an empty string; name a tracker")
        require(bool(self.project.strip()), "report.project is empty; name a project")
