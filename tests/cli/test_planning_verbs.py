"""`freerun plan`, `freerun simulate RECIPE` and `freerun calibrate`: their output, their refusals, their page."""

import re
from pathlib import Path

import pytest
from documented_commands import ROOT, commands_of
from simulated_setups import make_recipe, make_setup

from freerun.cli.main import main
from freerun.config.engine import EngineConfig
from freerun.config.load import dump_toml
from freerun.config.train import TrainConfig
from freerun.events.store import Store
from freerun.simulation.run import simulate

EIGHT_NODES = ROOT / "examples" / "eight-nodes.toml"
ON_GPUS = ["--kind", "h100", "--model", "qwen2.5-7b", "--lengths", "1200"]


def test_the_recipe_of_the_pages_is_the_one_in_examples() -> None:
    text = EIGHT_NODES.read_text().partition("\n")[2]
    assert f"```toml\n{text}```" in (ROOT / "docs" / "cluster.md").read_text()


def test_a_simulated_run_prints_the_lines_of_a_real_one_and_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--train.prompts_per_step", "4", "--sampling.group_size", "4", "--steps", "3"]
    assert main(["simulate", str(EIGHT_NODES), "--gpus", "64", *ON_GPUS, *small]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"0:00:00  started  run eight-nodes  3 steps  max staleness 4", printed)
    assert re.search(r"step 3/3  length \S+  staleness ", printed)
    assert re.search(r"trained   [\d,]+ tokens/s", printed)
    assert re.search(r"time      [.#]{60}", printed)
    assert "error: not from measurements of this model" in printed


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["plan", str(EIGHT_NODES)], "freerun plan needs --gpus N"),
        (["plan", str(EIGHT_NODES), "--gpus", "64", "--kind", "h10"], 'unknown GPU "h10"'),
        (["plan", str(EIGHT_NODES), "--gpus", "64"], "or name its size, such as --model"),
        (["simulate", str(EIGHT_NODES), "--gpus", "8", *ON_GPUS], "48 + 16 GPUs"),
        (["simulate", "times-tables"], "needs --gpus N for a run on GPUs, or --calibration FILE"),
        (["simulate"], "takes a RECIPE, or --faults"),
        (["simulate", "times-tables", "--faults"], "takes a RECIPE, or --faults"),
        (["calibrate", "times-table"], "times-tables"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


def test_a_run_is_calibrated_and_simulated_from_its_own_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = make_recipe(
        engine=EngineConfig(num_workers=2, num_slots=16, cache_tokens=20_000),
        train=TrainConfig(num_steps=25, prompts_per_step=8),
    )
    with Store(tmp_path / "run") as store:
        simulate(make_setup(recipe=recipe), emit=store)
    (tmp_path / "run" / "config.toml").write_text(dump_toml(recipe))
    (tmp_path / "recipe.toml").write_text(dump_toml(recipe))
    assert main(["calibrate", "run"]) == 0
    assert "written to calibrations/run.toml" in capsys.readouterr().out
    assert main(["simulate", "recipe.toml", "--calibration", "calibrations/run.toml", "--steps", "5"]) == 0
    out = capsys.readouterr().out
    assert "times are those of run run" in out
    lanes = [line.split()[0] for line in out.splitlines() if line.endswith("in tenths)")]
    assert lanes == ["slots", "gate", "loads"]


@pytest.mark.slow
def test_the_commands_of_the_page_work_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    ran = [
        command
        for command in commands_of(ROOT / "docs" / "planning.md")
        if command.program == "freerun" and str(command.words[2]).startswith("examples/")
    ]
    assert len(ran) >= 3
    for command in ran:
        assert main(command.words[1:]) == 0, command
        assert "error: not from measurements" in capsys.readouterr().out
