"""MLflow: the server of `MLFLOW_TRACKING_URI`, or `mlflow.db` beside the run directories.

MLflow cannot take metrics back: a run that repeats steps is shown as a new one.
"""

import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from freerun.trackers.reporter import AlarmRaised, Measured, Reported, RunInfo, SampleTable, sample_cells

MLFLOW_FILE = "mlflow.db"
PER_REQUEST = 100
"""MLflow's limit on parameters per request."""
MAX_PARAM_CHARACTERS = 500
MAX_TAG_CHARACTERS = 4000
KEY_TAG = "freerun.key"
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "rewound": "KILLED"}


class MlflowReporter:
    continues = True

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

    def start(self, run: RunInfo) -> None:
        runs = Path(run.directory).resolve().parent
        address = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not address:
            make_database(runs / MLFLOW_FILE)
        self._client = MlflowClient(address or f"sqlite:///{runs / MLFLOW_FILE}")
        self._started = run.started
        artifacts = None if address else (runs / "mlflow-artifacts").as_uri()
        experiment = self._experiment(run.project, artifacts)
        found = self._client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{run.key}'") if run.is_resumed else []
        if found:
            self._run: str = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {KEY_TAG: run.key, "freerun.run": run.name, "freerun.version": run.version}
        made = self._client.create_run(experiment, run_name=run.title, tags=tags)
        self._run = made.info.run_id
        self._log_settings(run)

    def event(self, event: Reported) -> None:
        match event:
            case Measured():
                moment = int(1000 * (self._started + event.seconds))
                metrics = [Metric(_key(name), x, moment, event.step) for name, x in event.values.items()]
                self._client.log_batch(self._run, metrics=metrics)
            case AlarmRaised():
                text = f"step {event.step}: {event.finding.text}"[:MAX_TAG_CHARACTERS]
                self._client.log_batch(self._run, tags=[RunTag(f"freerun.alarm.{event.finding.rule}", text)])
            case SampleTable():
                head, rows = sample_cells(event)
                table = msgspec.json.encode({"columns": head, "data": rows}).decode()
                self._client.log_text(self._run, table, f"samples/step-{event.step}.json")

    def close(self, outcome: str) -> None:
        self._client.set_tag(self._run, "freerun.outcome", outcome)
        self._client.set_terminated(self._run, STATUS.get(outcome, "FAILED"), int(1000 * time.time()))

    def _experiment(self, project: str, artifacts: str | None) -> str:
        found = self._client.get_experiment_by_name(project)
        return str(found.experiment_id if found else self._client.create_experiment(project, artifacts))

    def _log_settings(self, run: RunInfo) -> None:
        params = [Param(_key(name), str(value)[:MAX_PARAM_CHARACTERS]) for name, value in run.settings.items()]
        for begin in range(0, len(params), PER_REQUEST):
            self._client.log_batch(self._run, params=params[begin : begin + PER_REQUEST])


def make_database(file: Path) -> None:
    """Create MLflow's database completely or not at all: it cannot open one with only some of its tables."""
    if file.exists():
        return
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".mlflow-") as scratch:
        made = Path(scratch) / MLFLOW_FILE
        MlflowClient(f"sqlite:///{made}").search_experiments()  # the first request creates the tables
        with suppress(FileExistsError):  # another run was faster
            os.link(made, file)


def _key(name: str) -> str:
    """A name that MLflow accepts: parts of a reward may have any name."""
    return re.sub(r"[^\w./ -]|\.\.", "_", name, flags=re.ASCII)[:250]
