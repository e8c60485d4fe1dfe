"""What each tracker has of the newest attempt at reporting a run: {step: {name: value}}, each value once."""

import json
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from freerun.trackers.cursor import cursor_file, read_cursor

Curves = dict[int, dict[str, float]]
BLOCK = 32768
HEAD = 7


def key_of(directory: Path, tracker: str) -> str:
    cursor = read_cursor(cursor_file(directory, tracker))
    assert cursor is not None
    return cursor.key


class Collected:
    """Curves in which nothing may come twice."""

    def __init__(self) -> None:
        self.curves: Curves = defaultdict(dict)

    def add(self, step: int, name: str, value: float) -> None:
        assert name not in self.curves[step], f"{name} of step {step} twice"
        self.curves[step][name] = value


def from_jsonl(directory: Path) -> Curves:
    found = Collected()
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] == "measured":
            for name, value in row["values"].items():
                found.add(row["step"], name, value)
    return found.curves


def from_tensorboard(directory: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    found = Collected()
    for tag in accumulator.Tags()["scalars"]:
        for point in accumulator.Scalars(tag):
            found.add(point.step, tag, point.value)
    return found.curves


def from_wandb(directory: Path) -> Curves:
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = [*(directory / "wandb").glob(f"offline-run-*/run-{key_of(directory, 'wandb')}.wandb")]
    found = Collected()
    for body in _log_records(file.read_bytes()):
        record = Record.FromString(body)
        items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        for name, value in items.items():
            if not name.startswith(("_", "freerun/")) and isinstance(value, int | float):
                found.add(items["freerun/step"], name, float(value))
    return found.curves


def _log_records(log: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log: blocks of 32 KiB with whole records, or first, middle and last parts."""
    place, whole = HEAD, b""  # W&B's own header comes first
    while place + HEAD <= len(log):
        left = BLOCK - place % BLOCK
        if left < HEAD:
            place += left
            continue
        length, kind = struct.unpack("<HB", log[place + 4 : place + HEAD])
        whole += log[place + HEAD : place + HEAD + length]
        place += HEAD + length
        if kind in (1, 4):
            yield whole
        if kind not in (2, 3):
            whole = b""


def from_trackio(directory: Path, database: Path) -> Curves:
    found, key = Collected(), key_of(directory, "trackio")
    with closing(sqlite3.connect(database)) as db:
        for step, metrics in db.execute(
            "SELECT step, metrics FROM metrics WHERE run_name LIKE ? ORDER BY id", (f"% {key}",)
        ):
            for name, value in json.loads(metrics).items():
                found.add(step, name, value)
    return found.curves


def from_mlflow(directory: Path) -> Curves:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{directory.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("freerun")
    key = key_of(directory, "mlflow")
    [run] = client.search_runs([experiment.experiment_id], f"tags.`freerun.key` = '{key}'")
    found = Collected()
    for name in run.data.metrics:
        for point in client.get_metric_history(run.info.run_id, name):
            found.add(point.step, name, point.value)
    return found.curves
