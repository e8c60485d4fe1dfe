"""Calibration: what a simulated run took is found again in its store; a file that is none is refused."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from simulated_setups import make_recipe, make_setup

from freerun.config.engine import EngineConfig
from freerun.config.train import TrainConfig
from freerun.errors import FreerunError
from freerun.events.events import AnyEvent, EngineReport, GraderReport
from freerun.events.store import Store
from freerun.simulation.calibration import Calibration, calibrate_run, read_calibration, write_calibration
from freerun.simulation.costs import LinearEngine, LinearTrainer, WeightCosts
from freerun.simulation.fitting import fit_times
from freerun.simulation.run import Setup, simulate
from freerun.types import EngineStats

ENGINE = LinearEngine(step=0.02, sequence=4e-3, cached_token=2e-5, prefill_token=1e-3)
TRAINER = LinearTrainer(step=0.5, token=2e-4)


def a_setup(num_steps: int = 40) -> Setup:
    recipe = make_recipe(
        engine=EngineConfig(num_workers=2, num_slots=24, cache_tokens=20_000),
        train=TrainConfig(num_steps=num_steps, prompts_per_step=8),
    )
    weights = WeightCosts(hold_seconds=0.1, transfer_seconds=0.4, load_seconds=0.3)
    return make_setup(recipe=recipe, engine_costs=ENGINE, trainer_costs=TRAINER, weights=weights, num_warm_steps=0)


def record(setup: Setup, directory: Path) -> None:
    with Store(directory) as store:

        def listen(event: AnyEvent) -> None:
            store(event)

        simulate(setup, emit=listen)
        store(
            GraderReport(
                seconds=1.0,
                worker="grader-0",
                num_graded=200,
                num_failed=0,
                busy_seconds=5.0,
                slowest_seconds=0.1,
                up_seconds=9.0,
            )
        )


def test_a_runs_own_store_gives_back_what_it_took(tmp_path: Path) -> None:
    setup = a_setup()
    record(setup, tmp_path / "known")
    found = calibrate_run(tmp_path / "known")
    assert found.run == "known"
    assert found.engine.error < 0.05
    for sequences, cached in ((1, 100), (8, 1500), (24, 4000)):
        expected = ENGINE.step_seconds(sequences, cached)
        assert found.engine_costs.step_seconds(sequences, cached) == pytest.approx(expected, rel=0.25)
    assert found.trainer.step == pytest.approx(TRAINER.step, rel=0.05)
    assert found.trainer.token == pytest.approx(TRAINER.token, rel=0.05)
    assert found.weights.load_seconds == pytest.approx(0.3)
    assert found.weights.hold_seconds == pytest.approx(0.1)
    assert 0.3 < found.weights.transfer_seconds < 1.0
    assert found.workload.grade_seconds == pytest.approx(0.025)
    assert found.workload.prompt_tokens == 20
    assert found.workload.lengths.of_group(3, 4) == setup.lengths.of_group(3, 4)

    again = make_setup(
        recipe=setup.recipe,
        engine_costs=found.engine_costs,
        trainer_costs=found.trainer_costs,
        weights=found.weights,
        lengths=found.workload.lengths,
        num_warm_steps=0,
    )
    assert simulate(again).tokens_per_second == pytest.approx(simulate(setup).tokens_per_second, rel=0.1)

    write_calibration(found, tmp_path / "made" / "known.toml")
    assert read_calibration(tmp_path / "made" / "known.toml") == found
    assert "a prefill token" in str(found)


def fitted(directory: Path, reports: list[EngineReport]) -> Calibration:
    """Of a run whose engine reported this."""
    with Store(directory / "run") as store:
        simulate(
            a_setup(num_steps=5), emit=lambda event: None if isinstance(event, EngineReport) else store(event)
        )
        for report in reports:
            store(report)
    return calibrate_run(directory / "run")


def test_the_time_that_an_engine_drains_is_no_part_of_the_way_of_its_weights(tmp_path: Path) -> None:
    setup = a_setup()
    draining = replace(setup.recipe, engine=replace(setup.recipe.engine, kv_on_load="drain"))
    record(replace(setup, recipe=draining), tmp_path / "drained")
    found = calibrate_run(tmp_path / "drained")
    assert 0.4 <= found.weights.transfer_seconds < 0.7  # up to a step more: the load is taken in when one ends


def test_a_run_that_is_too_short_is_refused(tmp_path: Path) -> None:
    record(a_setup(num_steps=2), tmp_path / "short")
    with pytest.raises(FreerunError, match="has trained 2 steps; a calibration needs 4"):
        calibrate_run(tmp_path / "short")


def test_a_file_that_is_no_calibration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("run = 3\n")
    with pytest.raises(FreerunError, match="is not a calibration"):
        read_calibration(tmp_path / "x.toml")
    with pytest.raises(FreerunError, match="cannot be read"):
        read_calibration(tmp_path / "y.toml")


def test_no_factor_is_negative_and_exact_data_are_fitted_exactly() -> None:
    rows = [(1.0, float(n), float(n * n)) for n in range(1, 9)]
    factors, error = fit_times(rows, [3 + 2 * n for n in range(1, 9)])
    assert factors == pytest.approx([3, 2, 0], abs=1e-6)
    assert error < 1e-6
    factors, _ = fit_times(rows, [10 - n for n in range(1, 9)])
    assert min(factors) >= 0


def test_steps_that_took_no_time_do_not_hide_the_others() -> None:
    tokens = [100.0, 200.0, 300.0, 400.0] * 5
    seconds = [0.01 if index % 4 == 3 else 0.01 * number for index, number in enumerate(tokens)]
    factors, _ = fit_times([(1.0, number) for number in tokens], seconds)
    assert sum(factors[0] + factors[1] * number for number in tokens) == pytest.approx(sum(seconds), rel=0.1)


def reports(*, num_prefilled: int, num_attended: int) -> list[EngineReport]:
    """Of an engine whose cache is empty whenever it reports: 2 ms a step and 50 us a token of either kind.

    A cached token takes 1 us. A request takes 3 ms, of which no report knows, for each 8 tokens of its prompt.
    """
    stats, found = EngineStats(version=0), []
    for number in range(40):
        steps = 100 + 7 * (number % 5)
        tokens, attended = steps * (5 + number % 3), num_attended * steps * (1 + number % 4)
        prefilled = num_prefilled + number % 6
        spent = 2e-3 * steps + 5e-5 * (tokens + prefilled) + 1e-6 * attended + 3e-3 * prefilled / 8
        stats = msgspec.structs.replace(
            stats,
            num_steps=stats.num_steps + steps,
            num_tokens=stats.num_tokens + tokens,
            num_prefill_tokens=stats.num_prefill_tokens + prefilled,
            num_attended_tokens=stats.num_attended_tokens + attended,
            up_seconds=stats.up_seconds + spent,
        )
        found.append(EngineReport(seconds=stats.up_seconds, worker="rollout-0", stats=stats))
    return found


def test_cached_tokens_are_counted_by_steps_and_not_where_reports_find_them(tmp_path: Path) -> None:
    found = fitted(tmp_path, reports(num_prefilled=0, num_attended=100))
    assert found.engine.cached_token == pytest.approx(1e-6, rel=0.05)


def test_a_run_that_prefills_little_does_not_blame_prompts_for_what_requests_take(tmp_path: Path) -> None:
    few = fitted(tmp_path / "few", reports(num_prefilled=10, num_attended=0)).engine
    assert few.prefill_token == few.sequence < 2e-4
    many = fitted(tmp_path / "many", reports(num_prefilled=400, num_attended=0)).engine
    assert many.prefill_token > 3e-4
