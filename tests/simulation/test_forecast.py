"""The last lines of `--dry-run`: from what they were estimated, what they say, and never without their error."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_setups import make_recipe, make_setup
from tiny_runs import make_run

from freerun.config.engine import EngineConfig
from freerun.config.load import dump_toml, load_recipe
from freerun.config.recipe import BufferConfig, Recipe, RunConfig
from freerun.config.train import TrainConfig
from freerun.events.store import Store
from freerun.simulation.calibration import calibrate_run, write_calibration
from freerun.simulation.costs import ROOFLINE_ERROR
from freerun.simulation.forecast import describe_forecast
from freerun.simulation.run import simulate


def stored_run(directory: Path, name: str, **changes: object) -> Recipe:
    """A run that was simulated into a store; the recipe of another run beside it."""
    recipe = make_recipe(
        engine=EngineConfig(num_workers=2, num_slots=16, cache_tokens=20_000),
        train=TrainConfig(num_steps=25, prompts_per_step=8),
        run=RunConfig(name=name, directory=str(directory)),
        **changes,
    )
    with Store(directory / name) as store:
        simulate(make_setup(recipe=recipe), emit=store)
    (directory / name / "config.toml").write_text(dump_toml(recipe))
    return replace(recipe, run=replace(recipe.run, name="next"))


def test_a_stored_run_of_the_recipe_is_what_a_plan_is_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = stored_run(tmp_path / "runs", "first")
    real = simulate(make_setup(recipe=recipe, num_warm_steps=10))
    lines = describe_forecast(recipe).splitlines()
    starts = ["time: about", "speed: about", "limited by: ", "what would help, each alone:"]
    assert all(line.strip().startswith(start) for line, start in zip(lines, starts, strict=False)), lines
    assert "by the curves and lengths of run first" in lines[0]
    said = float(lines[1].split()[2].replace(",", "").replace("k", "e3"))
    assert said == pytest.approx(real.tokens_per_second, rel=0.1)
    assert lines[-1].strip().startswith("error: its engine fits within")


def test_other_settings_of_that_run_are_simulated_and_another_model_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = stored_run(tmp_path / "runs", "first")
    synchronous = replace(recipe, buffer=BufferConfig(max_staleness=0))
    assert "by the curves and lengths of run first" in describe_forecast(synchronous)
    elsewhere = replace(recipe, engine=replace(recipe.engine, num_workers=1))
    assert "run first" not in describe_forecast(elsewhere)


def test_a_calibration_of_the_name_of_the_run_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = stored_run(tmp_path / "runs", "first")
    os.rename(tmp_path / "runs" / "first", tmp_path / "kept")
    write_calibration(calibrate_run(tmp_path / "kept"), tmp_path / "calibrations" / "next.toml")
    assert "by the curves and lengths of run kept" in describe_forecast(recipe)


def test_without_a_measurement_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(make_run(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = describe_forecast(recipe)
    assert "by the speed of a matrix product now and a guess of completions" in text
    assert "error: not from measurements of this model: a factor of 2 either way is usual" in text
    assert "limited by: " in text


def test_gpus_of_a_cluster_are_taken_for_those_of_a_data_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(make_run(tmp_path))
    recipe = replace(recipe, runtime=replace(recipe.runtime, backend="ray", address="10.0.0.1:6379"))
    text = describe_forecast(recipe)
    assert "on GPUs like h100 (`freerun plan --kind` takes others) and a guess of completions" in text
    assert "error: not from measurements of this model: a roofline of h100" in text
    assert ROOFLINE_ERROR in text
    assert "limited by: " in text
    on_cpus = replace(recipe, engine=replace(recipe.engine, device="cpu"))
    assert "time: not estimated: no run of this recipe is stored" in describe_forecast(on_cpus)


def test_what_is_not_simulated_is_not_estimated() -> None:
    recipe = make_recipe()
    assert describe_forecast(replace(recipe, train=replace(recipe.train, num_steps=0))) == ""
    with_tools = replace(recipe, rollout=replace(recipe.rollout, episode="calculator"))
    assert "time: not estimated: sessions of several turns" in describe_forecast(with_tools)
