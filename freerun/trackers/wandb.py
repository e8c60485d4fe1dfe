"""Weights & Biases. `WANDB_MODE=offline` writes to the run directory, `wandb sync` sends it later.

W&B counts steps by itself and refuses steps that go back, so ours are the metric `freerun/step`, the x-axis of all
others. W&B cannot take steps back either: a run that repeats some is shown as a new one, in the same group.
"""

import os
from typing import Any

import wandb

from freerun.trackers.reporter import (
    SFT_STEP_KEY,
    STEP_KEY,
    AlarmRaised,
    Measured,
    Reported,
    RunInfo,
    SampleTable,
    sample_cells,
)

PREFIXES = ("train", "eval", "time", "queue", "engine", "health")


class WandbReporter:
    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._run: Any = None

    @property
    def continues(self) -> bool:
        """Whether it can append: another process cannot append to the file of an offline run."""
        return os.environ.get("WANDB_MODE", "online") == "online"

    def start(self, run: RunInfo) -> None:
        options = {"console": "off", "disable_git": True, "silent": True, "x_disable_stats": True}
        self._run = wandb.init(
            project=run.project,
            id=run.key,
            name=run.title,
            group=run.name,
            dir=run.directory,
            config={**run.settings, "freerun.version": run.version},
            resume="allow" if run.is_resumed else None,
            settings=wandb.Settings(**options),
        )
        for prefix in PREFIXES:
            self._run.define_metric(f"{prefix}/*", step_metric=STEP_KEY)
        self._run.define_metric("sft/*", step_metric=SFT_STEP_KEY)

    def event(self, event: Reported) -> None:
        match event:
            case Measured():
                axis = SFT_STEP_KEY if event.is_sft else STEP_KEY
                self._run.log({axis: event.step, **event.values})
            case AlarmRaised():
                level = wandb.AlertLevel.ERROR
                self._run.alert(title=f"freerun: {event.finding.rule}", text=event.finding.text, level=level)
            case SampleTable():
                head, rows = sample_cells(event)
                self._run.log({STEP_KEY: event.step, "samples": wandb.Table(columns=head, data=rows)})

    def close(self, outcome: str) -> None:
        self._run.summary["freerun/outcome"] = outcome
        if outcome == "rewound":
            self._run.tags = (*(self._run.tags or ()), outcome)
        self._run.finish(exit_code=1 if outcome in ("failed", "crashed") else 0)
