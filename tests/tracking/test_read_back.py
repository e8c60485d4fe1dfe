"""Each tracker is written for real, offline, and read back: it has what the store has, every step once."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from read_back import Curves, from_jsonl, from_mlflow, from_tensorboard, from_trackio, from_wandb
from recorded_events import a_start, an_end, an_eval, make_group, make_step, write
from tiny_runs import Run, are_gone, make_run

from freerun.cli.main import main
from freerun.events.reader import RunReader
from freerun.events.store import Store
from freerun.trackers.cursor import cursor_file, read_cursor

ALL = ("jsonl", "tensorboard", "wandb", "trackio", "mlflow")
TO_ALL = ("--report.to", "[" + ", ".join(f'"{name}"' for name in ALL) + "]")


def read_all(directory: Path) -> dict[str, Curves]:
    database = Path(os.environ["TRACKIO_DIR"]) / "freerun.db"
    readers: dict[str, Callable[[], Curves]] = {
        "jsonl": lambda: from_jsonl(directory),
        "tensorboard": lambda: from_tensorboard(directory),
        "wandb": lambda: from_wandb(directory),
        "trackio": lambda: from_trackio(directory, database),
        "mlflow": lambda: from_mlflow(directory),
    }
    return {name: read() for name, read in readers.items()}


def expected(directory: Path) -> Curves:
    """Metrics of all steps, and accuracies of all evaluations, by the store."""
    with RunReader(directory) as reader:
        curves = {s.version: {f"train/{n}": x for n, x in s.metrics.items()} for s in reader.steps()}
        for step in reader.steps():
            curves[step.version]["time/step_seconds"] = step.step_seconds
        for row in reader.evals():
            values = {
                "accuracy": row.accuracy,
                "accuracy_low": row.accuracy_low,
                "accuracy_high": row.accuracy_high,
            }
            curves.setdefault(row.version, {}).update({f"eval/{n}": x for n, x in values.items()})
    return curves


def same(found: float, value: float, *, is_float32: bool) -> bool:
    if math.isnan(value):
        return found is None or math.isnan(found)
    return found == (float(np.float32(value)) if is_float32 else value)


def assert_trackers_have(directory: Path) -> None:
    curves = expected(directory)
    for tracker, found in read_all(directory).items():
        steps = {s for s, values in found.items() if any(n.startswith(("train/", "eval/")) for n in values)}
        assert steps == curves.keys(), tracker
        for step, values in curves.items():
            names = {n for n in found[step] if n.startswith("train/") or n.startswith("eval/accuracy")}
            assert names == {n for n in values if not n.startswith("time/")}, (tracker, step)
            for name, value in values.items():
                is_equal = same(found[step][name], value, is_float32=tracker == "tensorboard")
                assert is_equal, (tracker, step, name, found[step][name], value)


def attempts(directory: Path) -> dict[str, int]:
    cursors = {name: read_cursor(cursor_file(directory, name)) for name in ALL}
    return {name: cursor.attempt for name, cursor in cursors.items() if cursor is not None}


def test_all_trackers_have_a_run_that_was_killed_and_resumed(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    long = ("--train.num_steps", "400", "--checkpoint.every_steps", "2", "--eval.every_steps", "4", *TO_ALL)
    run = Run(recipe, *long)
    run.until_saved(4)
    directory = run.reader_path
    run.until(
        lambda: (directory / "metrics.jsonl").exists() and "train/" in (directory / "metrics.jsonl").read_text()
    )
    workers = run.workers()
    assert [w for w in workers if "freerun.trackers.reporting" in " ".join(w.cmdline())]
    run.kill()
    assert are_gone(workers)
    with RunReader(directory) as reader:
        last = reader.last_step()
    num_steps = (last.version if last else 0) + 4
    resumed = Run(recipe, "--resume", "--train.num_steps", str(num_steps), "--report.wait_seconds", "120")
    assert resumed.wait(240) == 0, resumed.output
    assert " failed" not in resumed.output
    assert_trackers_have(directory)
    assert set(attempts(directory).values()) == {2}


def test_a_run_that_was_stopped_and_resumed_is_continued_where_the_tracker_can(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, "--train.num_steps", "400", *TO_ALL, "--report.wait_seconds", "120")
    run.until_step(3)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(240) == 130, run.output
    with RunReader(run.reader_path) as reader:
        num_steps = len(reader.steps()) + 3
    resumed = Run(recipe, "--resume", "--train.num_steps", str(num_steps))
    assert resumed.wait(240) == 0, resumed.output
    assert_trackers_have(run.reader_path)
    assert attempts(run.reader_path) == {"jsonl": 2, "tensorboard": 2, "wandb": 2, "trackio": 1, "mlflow": 1}


def test_a_finished_run_is_backfilled_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "runs" / "kept"
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text("[train]\nlr = 0.5\n")
    hostile = {"reward/<b>:é\n": 0.5, "not_finite": math.nan, "large": 1e300}
    steps = [make_step(v, (make_group(v, text="| <b>`\x00"),), **hostile) for v in range(1, 31)]
    write(directory, a_start(), an_eval(0), *steps[:20], an_eval(20), *steps[20:])
    with Store(directory) as store:
        store(an_end())
    command = ["track", str(directory), "--samples-every", "10"]
    for name in ("tensorboard", "wandb", "trackio", "jsonl"):
        command += ["--to", name]
    assert main(command) == 0
    assert capsys.readouterr().out.count("has everything of") == 4
    mlflow = ["track", str(directory), "--to", "mlflow"]
    assert main(mlflow) == 0
    assert main(mlflow) == 0
    assert "--again reports it again" in capsys.readouterr().out
    found = read_all(directory)
    assert all({*range(1, 31)} <= curves.keys() for curves in found.values())
    assert found["wandb"][7]["train/reward"] == 0.7
    assert found["mlflow"][7]["train/reward/_b____"] == 0.5
    assert main([*mlflow, "--again"]) == 0
    assert read_cursor(cursor_file(directory, "mlflow")).attempt == 2  # type: ignore[union-attr]
