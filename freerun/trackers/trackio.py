"""Trackio: a local database that `trackio show` displays, or a Hugging Face Space.

It goes where Trackio's own settings say (`TRACKIO_DIR`, `TRACKIO_SERVER_URL`). A run that repeats steps is shown
as a new one.
"""

from typing import Any

import trackio

from freerun.trackers.reporter import AlarmRaised, Measured, Reported, RunInfo, SampleTable, sample_cells


class TrackioReporter:
    continues = True

    def __init__(self) -> None:
        self._run: Any = None

    def start(self, run: RunInfo) -> None:
        self._run = trackio.init(
            project=run.project,
            name=f"{run.title} {run.key}",
            group=run.name,
            config=dict(run.settings),
            resume="must" if run.is_resumed else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def event(self, event: Reported) -> None:
        match event:
            case Measured():
                self._run.log({**event.values}, step=event.step)
            case AlarmRaised():
                title = f"freerun: {event.finding.rule}"
                self._run.alert(title=title, text=event.finding.text, level=trackio.AlertLevel.ERROR)
            case SampleTable():
                head, rows = sample_cells(event)
                self._run.log({"samples": trackio.Table(columns=head, data=rows)}, step=event.step)

    def close(self, outcome: str) -> None:
        self._run.finish()
