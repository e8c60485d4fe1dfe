"""Runs side by side: grouping, curves and the files, on a real run and on copies of it with other settings."""

import csv
import math
import re
import shutil
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import msgspec
import numpy as np
import pytest
from png_files import png_size
from rich.console import Console
from tiny_runs import Run, make_run

from freerun.cli.main import main
from freerun.cli.report_table import as_table, print_table
from freerun.errors import FreerunError
from freerun.events.events import AnyEvent, EvalRow, RunStarted, WeightsLoaded
from freerun.events.pass_at_k import Estimate
from freerun.events.reader import RunSummary
from freerun.reports.compare import read_groups, write_comparison
from freerun.reports.curves import bin_size_for, mean_curve
from freerun.reports.drawing import draw_comparison
from freerun.reports.groups import group_runs, summarise
from freerun.reports.intervals import t_interval
from freerun.reports.record import Point, RunRecord, find_start_ups, read_run
from freerun.reports.tables import markdown

HOSTILE = "[red]$\\frac{ | `x` \x1b[2J_"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run and two copies of it: one under another seed, one that says it was synchronous."""
    directory = tmp_path_factory.mktemp("compare")
    run = Run(make_run(directory), "--train.num_steps", "6", "--eval.every_steps", "2")
    assert run.wait() == 0, run.output
    original = run.reader_path
    return [
        original,
        copy_run(original, "again", r"seed = 3", "seed = 4"),
        copy_run(original, "sync", r"max_staleness = 4", "max_staleness = 0"),
    ]


def copy_run(original: Path, name: str, pattern: str, replacement: str) -> Path:
    copy = original.with_name(name)
    shutil.copytree(original, copy)
    config, num_changes = re.subn(pattern, lambda _: replacement, (copy / "config.toml").read_text())
    assert num_changes == 1
    (copy / "config.toml").write_text(config)
    return copy


def record(name: str, **config: object) -> RunRecord:
    """A run that did nothing."""
    summary = RunSummary(
        name=name, state="finished", version=0, num_steps=0, reward=None, accuracy=None, updated=0.0
    )
    settings = {key.replace("__", "."): value for key, value in config.items()}
    return RunRecord(Path(name), summary, {"run.name": name} | settings, [], [], [], 0.0)


def points(*values: float, seconds: float = 1.0) -> list[Point]:
    return [Point(step, step * seconds, 10.0 * step, value) for step, value in enumerate(values)]


def test_runs_that_differ_in_seed_and_name_are_one_group_named_by_what_sets_it_apart() -> None:
    groups = group_runs(
        [
            record("a", run__seed=0, buffer__max_staleness=8, objective__correction="none"),
            record("b", run__seed=0, buffer__max_staleness=0, objective__correction="none"),
            record("c", run__seed=1, buffer__max_staleness=8, objective__correction="none"),
        ]
    )
    assert [(group.label, len(group.by_seed)) for group in groups] == [
        ("buffer.max_staleness=8", 2),
        ("buffer.max_staleness=0", 1),
    ]


def test_groups_that_differ_in_too_much_or_in_nothing_are_named_after_their_first_run() -> None:
    many = {f"train__k{i}": i for i in range(9)}
    groups = group_runs([record("plain"), record("other", **many)])
    assert [group.label for group in groups] == ["plain", "other"]
    assert [group.label for group in group_runs([record("a", run__seed=0), record("b", run__seed=1)])] == ["a"]


def test_a_setting_that_only_one_run_has_sets_it_apart() -> None:
    groups = group_runs([record("a"), record("b", train__stop='a "quoted" word')])
    assert [g.label for g in groups] == ["train.stop=(unset)", 'train.stop="a \\"quoted\\" word"']


def test_the_mean_of_runs_on_one_grid_is_the_mean_of_their_values() -> None:
    curve = mean_curve([points(0.0, 0.5, 1.0), points(0.2, 0.7, 0.8)], "step")
    assert curve is not None
    np.testing.assert_allclose(curve.x, [0, 1, 2])
    np.testing.assert_allclose(curve.mean, [0.1, 0.6, 0.9])
    np.testing.assert_allclose(curve.high - curve.mean, 12.7062047 * 0.1 * np.array([1, 1, 1]), rtol=1e-6)


def test_runs_of_different_speed_are_averaged_between_their_points_and_only_where_all_have_any() -> None:
    curve = mean_curve([points(0, 1, 2, seconds=1), points(0, 1, 2, seconds=2), []], "seconds")
    assert curve is not None
    np.testing.assert_allclose(curve.x, [0, 1, 2])
    np.testing.assert_allclose(curve.mean, [0, 0.75, 1.5])
    assert mean_curve([[]], "step") is None


def test_long_runs_are_averaged_over_consecutive_steps() -> None:
    run = points(*map(float, range(100)))
    assert bin_size_for([run]) == 2
    curve = mean_curve([run], "step", bin_size=2)
    assert curve is not None
    np.testing.assert_allclose(curve.mean, np.arange(0.5, 100, 2))


def test_training_time_leaves_out_the_start_of_every_session_that_counts() -> None:
    started = [
        RunStarted(seconds=s, name="", directory="", num_steps=9, version=0, max_staleness=0) for s in (0, 50)
    ]
    loaded = [WeightsLoaded(seconds=s, version=0, checksum="") for s in (5, 20, 55, 57)]
    assert find_start_ups([started[0], *loaded[:2], started[1], *loaded[2:]]) == [(0, 5), (50, 55)]
    # The second session was undone by a third that went on from the same checkpoint.
    again: list[AnyEvent] = [started[0], loaded[0], started[1], loaded[2], started[1], loaded[3]]
    assert find_start_ups(again) == [(0, 5), (50, 57)]


@pytest.mark.slow
def test_a_synchronous_run_is_not_slow_because_it_waits_for_its_evaluations(runs: list[Path]) -> None:
    asynchronous, synchronous = read_run(runs[0]), read_run(runs[2])
    assert len(asynchronous.pauses) == 1
    evaluations = synchronous.pauses[1:]
    waits = {step.version - 1: step.wait_seconds for step in synchronous.steps}
    assert len(evaluations) == len([row for row in synchronous.evals if row.version in waits])
    paused = sum(end - begin for begin, end in evaluations)
    assert 0 < paused <= sum(waits.values())
    assert synchronous.numbers["seconds"] == pytest.approx(
        asynchronous.numbers["seconds"]
        - sum(end - begin for begin, end in evaluations if end <= synchronous.steps[-1].seconds)
    )


def test_the_curves_of_a_run_are_what_its_store_holds(runs: list[Path]) -> None:
    run = read_run(runs[0])
    rewards = run.series("reward")
    assert [(p.step, p.value) for p in rewards] == [(s.version, s.metrics["reward"]) for s in run.steps]
    assert rewards[-1].trained_tokens == sum(step.metrics["num_tokens"] for step in run.steps)
    seconds = [point.seconds for point in rewards]
    assert 0 < seconds[0] < seconds[-1] < run.steps[-1].seconds
    assert run.series("held_out_accuracy")[0].seconds == 0.0
    numbers = run.numbers
    assert numbers["tokens_per_second"] == pytest.approx(rewards[-1].trained_tokens / seconds[-1])
    counts = [staleness for step in run.steps for staleness in step.staleness_counts]
    assert numbers["staleness_max"] == max(counts)
    assert numbers["final_accuracy"] == run.evals[-1].accuracy


def test_compare_writes_a_table_a_figure_and_every_number(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "2 seeds" in printed
    assert "4 prompts" in printed
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| buffer.max_staleness=4 | 2 |" in table
    assert "| buffer.max_staleness=0 | 1 |" in table
    width, height = png_size(tmp_path / "out" / "compare.png")
    assert width > 1000
    assert height > 600

    with (tmp_path / "out" / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["run"] for row in rows} == {"tiny", "again", "sync"}
    for step in read_run(runs[0]).steps:
        found = {
            r["metric"]: float(r["value"]) for r in rows if r["run"] == "tiny" and r["step"] == str(step.version)
        }
        assert {name: found[name] for name in step.metrics} == step.metrics


def test_the_interval_is_over_seeds_if_there_are_some_and_over_prompts_if_not(runs: list[Path]) -> None:
    two, one = summarise(read_groups(runs))
    assert (two.interval_over, one.interval_over) == ("2 seeds", "4 prompts")
    assert two["final_accuracy"].low == two["final_accuracy"].high == two["final_accuracy"].value
    last = read_run(runs[2]).evals[-1]
    assert (one["final_accuracy"].low, one["final_accuracy"].high) == (last.accuracy_low, last.accuracy_high)
    assert one["final_accuracy"].low < one["final_accuracy"].high


def evaluated(name: str, seed: int, *accuracies: float, **config: object) -> RunRecord:
    """A run that only evaluated."""
    rows = [
        EvalRow(version=version, seconds=0.0, accuracy=accuracy, accuracy_low=accuracy - 0.25,
                accuracy_high=accuracy + 0.125, num_prompts=9, num_samples=1, num_failed=0, mean_length=1.0)
        for version, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    return replace(record(name, run__seed=seed, **config), evals=rows)


def test_groups_are_compared_with_the_first_seed_by_seed() -> None:
    noise = (0.3, 0.0, -0.2)  # shared by all runs of a seed
    base = [evaluated(f"a{seed}", seed, 0.5 + noise[seed]) for seed in range(3)]
    other = [evaluated(f"b{seed}", seed, 0.6 + noise[seed] + 0.001 * seed, train__lr=1.0) for seed in range(3)]
    first, second = summarise(group_runs([*base, *other]))
    assert math.isnan(first.difference.value)
    assert second.difference.value == pytest.approx(0.101)
    assert second.difference.half_width == pytest.approx(4.303 * 0.001 / 3**0.5, rel=1e-3)
    assert second["final_accuracy"].half_width > 0.5, "without the pairing the noise of the seeds is all there"
    _, second = summarise(group_runs([*base[:2], *other[1:]]))
    assert second.difference.value == pytest.approx(0.101), "one seed in common"
    assert not second.difference.has_interval


def test_a_seed_that_was_run_again_counts_once() -> None:
    run = evaluated
    [twice] = group_runs([run("a", 3, 0.0, 0.5), run("b", 3, 0.0, 0.75, math.nan)])
    [summary] = summarise([twice])
    assert summary.interval_over == "9 prompts"
    assert summary["final_accuracy"] == Estimate(0.625, 0.375, 0.75)
    [three] = group_runs([run("a", 3, 0.0), run("b", 3, 0.5), run("c", 4, 0.75)])
    assert summarise([three])[0].interval_over == "2 seeds"
    assert summarise([three])[0]["final_accuracy"] == t_interval([0.25, 0.75])
    [never] = group_runs([run("a", 3)])
    assert summarise([never])[0].interval_over == ""


def test_accuracy_before_training_is_that_of_version_0_or_unknown() -> None:
    rows = [
        EvalRow(version=version, seconds=0.0, accuracy=accuracy, accuracy_low=0.0, accuracy_high=1.0,
                num_prompts=9, num_samples=1, num_failed=0, mean_length=1.0)
        for version, accuracy in ((0, math.nan), (2, 0.5))
    ]  # fmt: skip
    assert math.isnan(replace(record("a"), evals=rows).numbers["first_accuracy"])


def test_runs_of_one_seed_are_averaged_before_the_band_is_drawn() -> None:
    lines = [points(0.0, 0.5), points(0.5, 0.5), points(1.0, 1.0)]
    curve, plain = mean_curve(lines, "step", seeds=[3, 3, 4]), mean_curve([points(0.25, 0.5), lines[2]], "step")
    assert curve is not None
    assert plain is not None
    np.testing.assert_allclose(curve.mean, plain.mean)
    np.testing.assert_allclose(curve.high, plain.high)


def test_a_run_named_twice_and_a_directory_that_is_no_run_are_refused(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FreerunError, match="named more than once"):
        read_groups([runs[0], runs[0].parent / "." / "tiny"])
    with pytest.raises(FreerunError, match=r"is not a run directory \(no config.toml\)"):
        read_groups([tmp_path])


def test_a_comparison_that_cannot_be_written_is_one_line(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["compare", *map(str, runs), "--out", str(tmp_path / "file" / "x")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("cannot be written (Not a directory); name another with --out DIR")


def test_without_matplotlib_there_is_a_table_and_the_figure_names_what_to_install(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["compare", str(runs[0])]) == 0
    assert main(["compare", str(runs[0]), "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'freerun[plots]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_hostile_names_are_shown_and_do_nothing(runs: list[Path], tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=100)
    console.print(as_table(["group", "held-out"], [[HOSTILE, "1"]]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]$\\frac{ | `x` _" in shown
    assert "\x1b" not in shown
    cell = markdown(["group"], [[HOSTILE]]).splitlines()[2]
    assert cell == "| \\[red]$\\\\frac{ \\| \\`x\\`  \\[2J_ |"
    [group, _] = read_groups(runs)
    draw_comparison([replace(group, label="_" + HOSTILE.replace("\x1b", ""))], tmp_path / "hostile.png")
    assert png_size(tmp_path / "hostile.png")


def test_unfinished_runs_are_compared_as_far_as_they_are_and_named(runs: list[Path], tmp_path: Path) -> None:
    empty = record("not-begun")
    empty = replace(empty, summary=msgspec.structs.replace(empty.summary, state="interrupted"))
    groups = [*read_groups(runs), *group_runs([empty])]
    write_comparison(groups, tmp_path)
    assert "Note: not-begun is interrupted at step 0/0" in (tmp_path / "table.md").read_text()


LONG = "times-tables with a name of its own, longer than most terminals are wide, and then some more of it"


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("is_terminal", [False, True], ids=["pipe", "terminal"])
def test_names_are_whole_however_narrow_the_output_is(width: int, is_terminal: bool) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=is_terminal, color_system=None)
    rows = [[LONG, "2", "22.5 % ± 2.5 %"], ["short", "1", "1.0 %"]]
    print_table(["group", "seeds", "held-out"], rows, [f"{LONG} is crashed at step 3/4"], console=console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line for line in lines if line.startswith(LONG)]
    assert f"note: {LONG} is crashed at step 3/4" in lines
    assert [line for line in lines if line.endswith("2  22.5 % ± 2.5 %")]


def test_accuracies_are_shown_in_percent_and_written_as_shares(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(runs[0]), "--out", str(tmp_path)]) == 0
    accuracy = read_run(runs[0]).evals[-1].accuracy
    assert f" {100 * accuracy:.1f} %" in capsys.readouterr().out
    assert f"| {100 * accuracy:.1f} %" in (tmp_path / "table.md").read_text()
    assert f"held_out_accuracy,{accuracy}" in (tmp_path / "compare.csv").read_text()
