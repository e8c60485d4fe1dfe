"""Studies over any keys: the plan, and real studies that are stopped, continued, and fail."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from png_files import png_size
from recorded_events import a_start, an_end, make_step, write
from tiny_runs import ROOT, make_run

from freerun.cli.main import main
from freerun.config.load import dump_toml
from freerun.errors import ConfigError, FreerunError
from freerun.events.reader import RunReader, RunSummary
from freerun.events.schema import StepRow
from freerun.reports.groups import RunGroup, summarise
from freerun.reports.record import RunRecord
from freerun.reports.study import Study, find_failures, finished_groups, plan_study, state_of
from freerun.reports.study_report import effects, write_report

OVERRIDES = ["--train.num_steps", "30", "--eval.every_steps", "100", "--checkpoint.every_steps", "100"]
STALENESS = "buffer.max_staleness=0,2"
CORRECTION = "objective.correction=none,decoupled"


def plan(recipe: Path, *overrides: str, over: tuple[str, ...] = (STALENESS,), num_seeds: int = 1) -> Study:
    return plan_study(recipe, overrides, over=over, num_seeds=num_seeds, directory=recipe.parent / "study")


def start_study(recipe: Path, *arguments: str) -> subprocess.Popen[str]:
    """`freerun study` as a user starts it, with one seed."""
    command = ["study", str(recipe), "--over", STALENESS, "--seeds", "1", "--out", str(recipe.parent / "study")]
    return subprocess.Popen(
        [sys.executable, "-m", "freerun.cli.main", *command, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def num_sessions(directory: Path) -> int:
    with RunReader(directory) as reader:
        return len(list(reader.events("run_started")))


def test_a_study_is_the_grid_of_all_values_seed_by_seed(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), over=("buffer.max_staleness=0,8", CORRECTION), num_seeds=2)
    assert [run.name for run in study.runs] == [
        f"max_staleness-{bound}-correction-{correction}-seed-{seed}"
        for seed in (0, 1)
        for bound in ("0", "8")
        for correction in ("none", "decoupled")
    ]
    assert [run.recipe.buffer.max_staleness for run in study.runs[:4]] == [0, 0, 8, 8]
    assert [run.recipe.objective.correction for run in study.runs[:2]] == ["none", "decoupled"]
    assert {run.recipe.run.seed for run in study.runs[:4]} == {0}
    assert study.warm is None


def test_keys_of_one_name_and_values_that_are_no_file_names_give_distinct_runs(tmp_path: Path) -> None:
    over = ("train.dtype=float32,bfloat16", "engine.dtype=float32", r'sampling.stop=["\n",";"],["\n"]')
    study = plan(make_run(tmp_path), over=over)
    assert study.over["sampling.stop"] == [r'["\n",";"]', r'["\n"]'], "a comma in brackets is part of an array"
    assert [run.recipe.sampling.stop for run in study.runs[:2]] == [("\n", ";"), ("\n",)]
    assert study.runs[0].name.startswith("train.dtype-float32-engine.dtype-float32-stop-_n_-")
    assert len({run.name for run in study.runs}) == 4


def test_without_keys_a_study_is_one_group_of_seeds(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), over=(), num_seeds=3)
    assert [run.name for run in study.runs] == ["seed-0", "seed-1", "seed-2"]
    assert [group.label for group in finished_groups(study)] == ["tiny"]


def test_a_warm_start_is_done_once_and_every_run_starts_from_its_model(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), "--sft.num_steps", "5", num_seeds=2)
    assert study.warm is not None
    assert study.all_runs[0] is study.warm
    assert (study.warm.recipe.sft.num_steps, study.warm.recipe.train.num_steps) == (5, 0)
    model = str(study.directory / "warm/checkpoints/step-0/model")
    assert {(r.recipe.model.path, r.recipe.sft.is_on) for r in study.runs} == {(model, False)}


def test_sft_on_a_file_is_shared_like_a_warm_start(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": "^1,2>", "completion": "1"}\n')
    study = plan(make_run(tmp_path), "--sft.path", str(rows), "--sft.template", "{q}")
    assert study.warm is not None
    assert study.warm.recipe.sft.is_on
    assert not any(run.recipe.sft.is_on for run in study.runs)


def test_a_warm_start_that_depends_on_a_studied_key_is_not_shared(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), "--sft.num_steps", "5", over=("sft.lr=1e-3,1e-2",))
    assert study.warm is None
    assert [run.recipe.sft.num_steps for run in study.runs] == [5, 5]


@pytest.mark.parametrize(
    ("over", "num_seeds", "complaint"),
    [
        ("buffer.max_staleness=0,-1", 1, "max_staleness = -1"),
        ("buffer.max_stalness=0", 1, 'did you mean "buffer.max_staleness"'),
        ("train.lr=fast", 1, 'train.lr = "fast" on the command line must be a number'),
        ("train.lr=1e-5,0.00001", 1, "1e-5 and 0.00001 are the same value"),
        ("train.lr=1,1", 1, "1 and 1 are the same value"),
        ("train.lr", 1, "must be KEY=VALUE,VALUE"),
        ("train.lr=,", 1, "must be KEY=VALUE,VALUE"),
        ("data.task=euclid,chess", 1, 'unknown task data.task = "chess"'),
        ("reward.grader=number,nubmer", 1, "nubmer"),
        ("run.seed=1,2", 1, "decided by the study; use --seeds"),
        ("train.num_steps=8", 1, "given twice, as an override and with --over"),
        ("train.lr=1", 0, "--seeds 0 must be 1 or more"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(tmp_path: Path, over: str, num_seeds: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        plan(make_run(tmp_path), "--train.num_steps=8", over=(over,), num_seeds=num_seeds)


def test_what_the_study_decides_cannot_be_overridden(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run.seed is decided by the study"):
        plan(make_run(tmp_path), "--run.seed=4")
    with pytest.raises(ConfigError, match=r"--over train.lr is given twice"):
        plan(make_run(tmp_path / "other"), over=("train.lr=1", "train.lr=2"))


@pytest.fixture(scope="module")
def stopped_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of a study of two runs that was stopped during the second."""
    recipe = make_run(tmp_path_factory.mktemp("study"))
    process = start_study(recipe, *OVERRIDES)
    log = recipe.parent / "study/logs/max_staleness-2-seed-0.txt"
    deadline = time.monotonic() + 240
    while not (log.is_file() and "step 1/" in log.read_text()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "max_staleness-2-seed-0 stopped" in output
    return recipe


@pytest.mark.slow
def test_a_stopped_study_is_continued_where_it_stopped(stopped_study: Path) -> None:
    study = plan(stopped_study, *OVERRIDES)
    assert [state_of(run) for run in study.runs] == ["finished", "to resume"]
    first_log = study.runs[1].log_file.read_text()
    process = start_study(stopped_study, *OVERRIDES)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert study.runs[1].log_file.read_text().startswith(first_log)
    assert "[2/2] max_staleness-2-seed-0 resumed" in output
    assert "max_staleness-0-seed-0 started" not in output
    assert [num_sessions(run.directory) for run in study.runs] == [1, 2]
    assert [state_of(run) for run in study.runs] == ["finished", "finished"]
    with RunReader(study.runs[1].directory) as reader:
        assert [step.version for step in reader.steps()] == list(range(1, 31))


@pytest.mark.slow
def test_the_report_has_intervals_over_seeds_and_the_numbers_of_every_run(stopped_study: Path) -> None:
    study = plan(stopped_study, *OVERRIDES, num_seeds=2)
    for run in study.runs[2:]:  # the second seed: a copy, so that it costs nothing
        twin = next(r for r in study.runs[:2] if r.values == run.values)
        shutil.copytree(twin.directory, run.directory, dirs_exist_ok=True)
        config = (run.directory / "config.toml").read_text()
        config = config.replace(f'name = "{twin.name}"', f'name = "{run.name}"').replace("seed = 0", "seed = 1")
        (run.directory / "config.toml").write_text(config)
    groups = finished_groups(study)
    assert [len(group.records) for group in groups] == [2, 2]
    write_report(study, groups, {}, ["freerun", "study"])

    synchronous, stale = summarise(groups)
    assert (synchronous.staleness_max, synchronous.interval_over) == (0, "2 seeds")
    assert stale.difference.has_interval
    assert 0 < stale["staleness_mean"].value <= stale.staleness_max <= 2
    facts = json.loads((study.directory / "study.json").read_text())
    assert facts["machine"]["cores"] >= 1
    assert [run["state"] for run in facts["runs"]] == ["finished"] * 4
    with (study.directory / "study.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    records = {record.name: record for group in groups for record in group.records}
    for row, run in zip(rows, study.runs, strict=True):
        assert row["buffer.max_staleness"] == run.values[0]
        numbers = records[run.name].numbers
        assert float(row["final_accuracy"]) == numbers["final_accuracy"]
        assert float(row["tokens_per_second"]) == numbers["tokens_per_second"]
    table = (study.directory / "table.md").read_text()
    assert "4 of 4 runs finished" in table
    assert "| buffer.max_staleness=2 | 2 |" in table
    assert png_size(study.directory / "study.png") > (1000, 500)


def record(name: str, seed: int, *, accuracy: float = 0.0, speed: float = 1.0) -> RunRecord:
    """A finished run that came down to these numbers."""
    summary = RunSummary(
        name=name, state="finished", version=1, num_steps=1, reward=None, accuracy=None, updated=0.0
    )
    made = RunRecord(Path(name), summary, {"run.seed": seed}, [], [], [], 0.0)
    made.numbers.update(final_accuracy=accuracy, tokens_per_second=speed)
    return made


def test_the_effect_of_a_key_is_paired_by_seed_over_all_values_of_the_others(tmp_path: Path) -> None:
    study = plan(make_run(tmp_path), over=(STALENESS, CORRECTION), num_seeds=3)
    noise = (0.3, 0.0, -0.2)  # shared by all runs of a seed
    levels: dict[tuple[str, ...], float] = {
        ("0", "none"): 0.5,
        ("0", "decoupled"): 0.5,
        ("2", "none"): 0.4,
        ("2", "decoupled"): 0.48,
    }
    groups = []
    for values in study.combinations():
        records = []
        for seed in range(3):
            accuracy = levels[values] + noise[seed] + 0.001 * seed * (values == ("2", "none"))
            speed = 100.0 * (1 + seed) * (2 if values[0] == "2" else 1)
            records.append(record("", seed, accuracy=accuracy, speed=speed))
        groups.append(RunGroup(study.label(values), records))
    staleness, correction = effects(study, groups)
    assert (staleness.key, staleness.value, staleness.first) == ("buffer.max_staleness", "2", "0")
    assert staleness.difference.value == pytest.approx((-0.1 + 0.001 - 0.02) / 2)
    assert staleness.speedup.value == pytest.approx(2)
    assert correction.difference.value == pytest.approx((0.08 - 0.001) / 2)
    assert correction.difference.half_width == pytest.approx(4.303 * 0.0005 / 3**0.5, rel=1e-3)
    del groups[2].records[1]
    staleness, _ = effects(study, groups)
    assert staleness.difference.value == pytest.approx((-0.1 + 0.001 - 0.02) / 2), "seeds 0 and 2"


def test_a_run_without_steps_does_not_hide_the_staleness_of_the_others() -> None:
    step = StepRow(version=1, seconds=1.0, step_seconds=1.0, wait_seconds=0.0, staleness_counts={2: 4}, metrics={})
    for order in ([[], [step]], [[step], []]):
        records = [replace(record("", seed), steps=steps) for seed, steps in enumerate(order)]
        assert summarise([RunGroup("", records)])[0].staleness_max == 2.0


@pytest.mark.slow
def test_a_directory_with_a_run_of_other_settings_is_refused(stopped_study: Path) -> None:
    study = plan(stopped_study, *OVERRIDES, "--train.lr", "0.5")
    with pytest.raises(
        FreerunError, match=r"made with train.lr = 0.01, not 0.5; give this study another directory"
    ):
        state_of(study.runs[0])


def test_a_run_with_other_settings_is_made_again_only_if_nothing_of_it_would_be_lost(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    before, after = (plan(recipe, "--train.num_steps", steps).runs[0] for steps in ("3", "4"))
    before.directory.mkdir(parents=True)
    (before.directory / "config.toml").write_text(dump_toml(before.recipe))
    assert (state_of(before), state_of(after)) == ("to resume", "to run"), (
        "it was killed before its store was made"
    )
    write(before.directory, a_start(), an_end("interrupted"))
    assert (state_of(before), state_of(after)) == ("to resume", "to run"), "it ended before its first step"
    (before.directory / "checkpoints").mkdir()
    with pytest.raises(FreerunError, match=r"made with train.num_steps = 3, not 4"):
        state_of(after)
    (before.directory / "checkpoints").rmdir()
    write(before.directory, make_step(1))
    with pytest.raises(FreerunError, match=r"made with train.num_steps = 3, not 4"):
        state_of(after)


def test_a_report_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "study"
    command = ["study", str(make_run(tmp_path)), "--over", STALENESS, "--out", str(out), "--report"]
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out == f"none of the 6 runs of {out} has finished: nothing to report yet\n"
    assert not out.exists()


def test_an_out_below_a_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make_run(tmp_path)
    (tmp_path / "notes").write_text("mine")
    out = tmp_path / "notes" / "study"
    capsys.readouterr()
    assert main(["study", str(recipe), "--over", STALENESS, "--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        f'freerun: "{out}" cannot be made (Not a directory); name another with --out DIR\n'
    )


def test_what_a_run_would_be_refused_for_is_refused_before_the_first_run(tmp_path: Path) -> None:
    process = start_study(make_run(tmp_path), "--reward.grader", "tests.support.lively_grader:gone")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    assert output.startswith("freerun: ")
    assert "gone" in output
    assert not (tmp_path / "study/runs").exists()


@pytest.mark.slow
def test_a_run_that_fails_is_reported_with_its_error_and_the_others_go_on(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    (tmp_path / "study/runs").mkdir(parents=True)
    (tmp_path / "study/runs/max_staleness-0-seed-0").write_text("in the way of the first run's directory")
    overrides = ["--sft.num_steps", "2", "--train.num_steps", "2"]
    overrides += ["--reward.grader", "tests.support.lively_grader:broken", "--reward.max_failures_in_row", "1"]
    process = start_study(recipe, *overrides)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1, output
    assert "[1/3] warm finished" in output
    assert "[2/3] max_staleness-0-seed-0 failed: " in output
    assert "[3/3] max_staleness-2-seed-0 failed: 1 rollouts in a row failed" in output

    failures = find_failures(plan(recipe, *overrides))
    assert "exists but is not a run" in failures["max_staleness-0-seed-0"]
    assert "this grader never works" in failures["max_staleness-2-seed-0"]
    facts = json.loads((tmp_path / "study/study.json").read_text())
    assert [run["error"] for run in facts["runs"]] == list(failures.values())
    table = (tmp_path / "study/table.md").read_text()
    assert "0 of 2 runs finished" in table
    assert "Note: max_staleness-2-seed-0 failed: 1 rollouts in a row failed" in table
