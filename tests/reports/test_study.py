"""Staleness studies: the plan, and real studies that are stopped, continued, and fail."""

import csv
import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from png_files import png_size
from tiny_runs import ROOT, make_run

from freerun.cli.main import main
from freerun.errors import ConfigError, FreerunError
from freerun.events.reader import RunReader, RunSummary, StepRow
from freerun.reports.paired import contrasts, speedup
from freerun.reports.record import RunNumbers, RunRecord
from freerun.reports.study import Condition, Study, objective_overrides, plan_staleness
from freerun.reports.study_report import summarise_conditions, write_report
from freerun.reports.study_state import find_failures, finished_records, state_of

OVERRIDES = ["--train.num_steps", "30", "--eval.every_steps", "100", "--checkpoint.every_steps", "100"]


def plan(recipe: Path, *overrides: str, etas: str = "0 2", objectives: str = "naive", num_seeds: int = 1) -> Study:
    return plan_staleness(
        recipe,
        overrides,
        etas=etas.split(),
        objectives=objectives.split(),
        num_seeds=num_seeds,
        directory=recipe.parent / "study",
    )


def start_study(recipe: Path, *arguments: str) -> subprocess.Popen[str]:
    """`freerun study staleness` as a user starts it."""
    out = ["--out", str(recipe.parent / "study")]
    return subprocess.Popen(
        [sys.executable, "-m", "freerun.cli.main", "study", "staleness", str(recipe), *out, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def num_sessions(directory: Path) -> int:
    with RunReader(directory) as reader:
        return len(list(reader.events("run_started")))


def test_objectives_of_the_paper_are_corrections_and_other_names_presets() -> None:
    assert objective_overrides("naive") == ["--objective.correction", "none"]
    assert objective_overrides("decoupled") == ["--objective.correction", "decoupled"]
    assert objective_overrides("grpo") == ["--objective.preset", "grpo"]


def test_runs_go_seed_by_seed_and_no_bound_is_as_many_versions_as_there_are_steps(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), etas="0 inf", objectives="naive decoupled", num_seeds=2)
    assert [run.name for run in study.runs] == [
        f"eta-{eta}-{objective}-seed-{seed}"
        for seed in (0, 1)
        for eta in ("0", "inf")
        for objective in ("naive", "decoupled")
    ]
    assert [run.recipe.buffer.max_staleness for run in study.runs[:4]] == [0, 0, 8, 8]
    assert {run.recipe.run.seed for run in study.runs[:4]} == {0}
    assert study.warm is None


def test_a_warm_start_is_done_once_and_every_run_starts_from_its_model(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), "--warm_start.num_steps", "5", num_seeds=2)
    assert study.warm is not None
    assert study.all_runs[0] is study.warm
    assert (study.warm.recipe.warm_start.num_steps, study.warm.recipe.train.num_steps) == (5, 0)
    model = str(study.directory / "warm/checkpoints/step-0/model")
    assert {(r.recipe.model.path, r.recipe.warm_start.num_steps) for r in study.runs} == {(model, 0)}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"etas": "0 -1"}, '--eta "-1" must be a whole number'),
        ({"etas": "4 4"}, "names a value twice"),
        ({"num_seeds": 0}, "--seeds 0 must be 1 or more"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        plan(make_run(tmp_path), **change)  # type: ignore[arg-type]


def test_what_the_study_decides_cannot_be_overridden(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--run.seed is decided by the study"):
        plan(make_run(tmp_path), "--run.seed=4")


@pytest.fixture(scope="module")
def stopped_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a study of two runs that was stopped during the second."""
    recipe = make_run(tmp_path_factory.mktemp("study"))
    process = start_study(recipe, "--eta", "0", "2", "--objective", "naive", "--seeds", "1", *OVERRIDES)
    log = recipe.parent / "study/logs/eta-2-naive-seed-0.txt"
    deadline = time.monotonic() + 240
    while not (log.is_file() and "step 1/" in log.read_text()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "eta-2-naive-seed-0 stopped" in output
    return recipe


def test_a_stopped_study_is_continued_where_it_stopped(stopped_study: Path) -> None:
    study = plan(stopped_study, *OVERRIDES)
    assert [state_of(run) for run in study.runs] == ["finished", "to resume"]
    first_log = study.log_file(study.runs[1]).read_text()
    process = start_study(stopped_study, "--eta", "0", "2", "--objective", "naive", "--seeds", "1", *OVERRIDES)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert study.log_file(study.runs[1]).read_text().startswith(first_log)
    assert "[2/2] eta-2-naive-seed-0 resumed" in output
    assert "eta-0-naive-seed-0 started" not in output
    assert [num_sessions(run.directory) for run in study.runs] == [1, 2]
    assert [state_of(run) for run in study.runs] == ["finished", "finished"]
    with RunReader(study.runs[1].directory) as reader:
        assert [step.version for step in reader.steps()] == list(range(1, 31))


def test_the_report_has_intervals_over_seeds_and_the_numbers_of_every_run(stopped_study: Path) -> None:
    study = plan(stopped_study, *OVERRIDES, num_seeds=2)
    for run in study.runs[2:]:  # the second seed: a copy, so that it costs nothing
        twin = next(r for r in study.runs[:2] if r.condition == run.condition)
        shutil.copytree(twin.directory, run.directory, dirs_exist_ok=True)
        config = (run.directory / "config.toml").read_text()
        config = config.replace(f'name = "{twin.name}"', f'name = "{run.name}"').replace("seed = 0", "seed = 1")
        (run.directory / "config.toml").write_text(config)
    records = finished_records(study.runs)
    assert len(records) == 4
    write_report(study, records, {}, ["freerun", "study"])

    synchronous, stale = summarise_conditions(study, records)
    assert (synchronous.staleness_max, synchronous.final_accuracy.num) == (0, 2)
    assert 0 < stale.staleness_mean <= stale.staleness_max <= 2
    facts = json.loads((study.directory / "study.json").read_text())
    assert facts["machine"]["cores"] >= 1
    assert [run["state"] for run in facts["runs"]] == ["finished"] * 4
    with (study.directory / "study.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, run in zip(rows, study.runs, strict=True):
        numbers = records[run.name].numbers()
        assert float(row["final_accuracy"]) == numbers.final_accuracy
        assert float(row["tokens_per_second"]) == numbers.tokens_per_second
    assert "4 of 4 runs finished: 30 steps of 12 trajectories each" in (study.directory / "table.md").read_text()
    assert png_size(study.directory / "study.png") > (1000, 500)


def test_contrasts_are_paired_by_seed(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), *OVERRIDES, objectives="naive decoupled", num_seeds=3)
    noise = {0: 0.3, 1: 0.0, 2: -0.2}  # shared by all runs of a seed
    effect = {("0", "naive"): 0.5, ("0", "decoupled"): 0.5, ("2", "naive"): 0.4, ("2", "decoupled"): 0.47}
    numbers = {}
    for run in study.runs:
        condition = (run.condition.eta, run.condition.objective)
        accuracy = effect[condition] + noise[run.seed] + 0.001 * run.seed * (condition == ("2", "naive"))
        speed = 100.0 * (1 + run.seed) * (2 if run.condition.eta == "2" else 1)
        numbers[run.condition, run.seed] = blank_numbers(final_accuracy=accuracy, tokens_per_second=speed)
    found = dict(contrasts(study, numbers))
    assert found["naive, η > 0 against η = 0"].mean == pytest.approx(-0.1 + 0.001)
    assert found["decoupled against naive, η > 0"].mean == pytest.approx(0.07 - 0.001)
    assert found["decoupled against naive, η > 0"].half_width == pytest.approx(4.303 * 0.001 / 3**0.5, rel=1e-3)
    assert speedup(study, numbers, Condition("2", "naive")).mean == pytest.approx(2)
    del numbers[Condition("2", "naive"), 1]
    assert dict(contrasts(study, numbers))["decoupled against naive, η > 0"].num == 2


def blank_numbers(**values: float) -> RunNumbers:
    fields = [field.name for field in dataclasses.fields(RunNumbers)]
    return RunNumbers(**({name: math.nan for name in fields} | {"metrics": {}} | values))  # type: ignore[arg-type]


def test_a_run_without_steps_does_not_hide_the_staleness_of_the_others(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), etas="2", num_seeds=2)
    step = StepRow(version=1, seconds=1.0, step_seconds=1.0, wait_seconds=0.0, staleness_counts={2: 4}, metrics={})
    summary = RunSummary(
        name="", state="finished", version=1, num_steps=1, reward=None, accuracy=None, updated=0.0
    )
    for order in ([[], [step]], [[step], []]):
        records = {
            run.name: RunRecord(run.directory, summary, {}, steps, [], [], 0.0)
            for run, steps in zip(study.runs, order, strict=True)
        }
        assert summarise_conditions(study, records)[0].staleness_max == 2.0


def test_a_directory_with_a_run_of_other_settings_is_refused(stopped_study: Path) -> None:
    study = plan(stopped_study, *OVERRIDES, "--train.lr", "0.5")
    with pytest.raises(FreerunError, match=r"made with train.lr = 0.01, not 0.5; give this study a directory"):
        state_of(study.runs[0])


def test_an_out_below_a_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make_run(tmp_path)
    (tmp_path / "notes").write_text("mine")
    out = tmp_path / "notes" / "study"
    capsys.readouterr()
    assert main(["study", "staleness", str(recipe), "--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        f'freerun: "{out}" cannot be made (Not a directory); name another with --out DIR\n'
    )


def test_a_run_that_fails_is_reported_with_its_error_and_the_others_go_on(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    (tmp_path / "study/runs").mkdir(parents=True)
    (tmp_path / "study/runs/eta-0-naive-seed-0").write_text("in the way of the first run's directory")
    overrides = ["--warm_start.num_steps", "2", "--train.num_steps", "2"]
    overrides += ["--reward.grader", "tests.support.lively_grader:broken", "--reward.max_failures_in_row", "1"]
    process = start_study(recipe, "--eta", "0", "2", "--objective", "naive", "--seeds", "1", *overrides)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1, output
    assert "[1/3] warm finished" in output
    assert "[2/3] eta-0-naive-seed-0 failed: " in output
    assert "[3/3] eta-2-naive-seed-0 failed: 1 rollouts in a row failed" in output

    failures = find_failures(plan(recipe, *overrides))
    assert "is there and is not a run" in failures["eta-0-naive-seed-0"]
    assert "this grader never works" in failures["eta-2-naive-seed-0"]
    facts = json.loads((tmp_path / "study/study.json").read_text())
    assert [run["error"] for run in facts["runs"]] == list(failures.values())
    table = (tmp_path / "study/table.md").read_text()
    assert "0 of 2 runs finished" in table
    assert "Failed: eta-2-naive-seed-0: 1 rollouts in a row failed" in table
