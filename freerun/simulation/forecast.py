"""Forecasts a recipe's speed, its bottleneck and remedies: the last lines of `--dry-run`.

    calibrations/NAME.toml, or a stored run of the recipe ──► measured curves ──┐
    nothing measured, CPUs ──► the speed of a matrix product ──────────────────┼──► simulation ──► lines
    nothing measured, GPUs ──► the roofline of an h100 ────────────────────────┘

The planner (`plan.py`) does the rest. The forecast says what it is based on, and how wrong it may be.
"""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.errors import FreerunError
from freerun.session.build import lends_cores
from freerun.session.devices import planned_devices
from freerun.session.memory import count_parameters
from freerun.session.preflight import read_inputs
from freerun.session.run_directory import RunDirectory
from freerun.simulation.calibration import Calibration, calibrate_run, read_calibration
from freerun.simulation.costs import LinearEngine, LinearTrainer
from freerun.simulation.hardware import GPUS
from freerun.simulation.plan import ClusterPlan, Limit, Remedy, consider_setup, gains_of, with_recipe
from freerun.simulation.plan_text import describe_limit, describe_rate, describe_remedies, error_text
from freerun.simulation.run import Setup, check_can_simulate
from freerun.simulation.shapes import find_shape
from freerun.simulation.splits import Machine, setup_of, split_of, steady_steps
from freerun.simulation.workload import GUESSED_SHARE, Workload, guess_workload

CALIBRATIONS = Path("calibrations")
"""Where `freerun calibrate` writes."""
ASSUMED_GPU = "h100"
_NUM_PROMPTS_COUNTED = 100
_SIDE = 768
_MEASURE_SECONDS = 0.2
_SPREAD = 2.0
"""Factor by which estimates from a matrix product may be wrong, either way."""


@dataclass(frozen=True)
class _Basis:
    """The simulated setup, and what it is based on."""

    setup: Setup
    words: str
    error: str
    spread: float
    """Factor by which the time may be wrong, either way."""


def describe_forecast(recipe: Recipe) -> str:
    """Lines below the plan; empty if nothing is generated or trained."""
    if not recipe.generates or recipe.train.num_steps == 0:
        return ""
    try:
        check_can_simulate(recipe)
        lines = _lines(recipe, _basis_of(recipe))
    except FreerunError as error:
        lines = [f"time: not estimated: {error}"]
    return "\n".join(f"  {line}" for line in lines)


def _lines(recipe: Recipe, basis: _Basis) -> list[str]:
    best = consider_setup(recipe, split_of(recipe), basis.setup)
    gains = gains_of(basis.setup, best.outcome)
    plan = ClusterPlan(best, (), best, gains, tuple(_remedies(basis.setup, best.outcome.tokens_per_second, gains)))
    seconds = recipe.train.num_steps * best.step_seconds
    return [
        f"time: {range_of_times(seconds / basis.spread, seconds * basis.spread)} on {basis.words}; without SFT, "
        "evaluations and checkpoints",
        f"speed: about {describe_rate(best.tokens_per_second)} tokens/s trained on, prompts included; a step "
        f"takes {best.step_seconds:,.2g} s",
        f"limited by: {describe_limit(plan)}",
        *describe_remedies(plan),
        f"error: {basis.error}. Nothing is said about what is learned",
    ]


def _remedies(setup: Setup, base: float, gains: dict[Limit, float]) -> list[Remedy]:
    """Changes that are possible on this machine, each alone."""
    recipe = setup.recipe
    prompts = 4 * recipe.train.prompts_per_step
    larger = with_recipe(setup, replace(recipe, train=replace(recipe.train, prompts_per_step=prompts)))
    outcome = consider_setup(larger.recipe, split_of(recipe), larger).outcome
    words: dict[Limit, str] = {
        "generation": f"engine.num_workers {2 * recipe.engine.num_workers}, with as many cores or GPUs more",
        "training": "twice the cores or GPUs for the trainer",
        "bound": f"buffer.max_staleness {2 * recipe.buffer.max_staleness + 1}",
        "loads": "weights published and loaded in half the time (lora.rank publishes only an adapter)",
        "graders": f"reward.num_workers {2 * recipe.reward.num_workers}",
    }
    found = [Remedy(words[limit], gain) for limit, gain in gains.items()]
    found.append(
        Remedy(f"train.prompts_per_step {prompts} (fewer, larger steps)", outcome.tokens_per_second / base)
    )
    return sorted(found, key=lambda remedy: remedy.factor, reverse=True)


# ---- from what it is estimated ------------------------------------------------------------------


def _basis_of(recipe: Recipe) -> _Basis:
    if (measured := _find_calibration(recipe)) is not None:
        return _measured(recipe, measured)
    if {*planned_devices(recipe).values()} == {"cpu"} and recipe.runtime.backend == "local":
        return _from_matrix_products(recipe)
    if "cpu" in (recipe.engine.device, recipe.train.device):
        raise FreerunError("no run of this recipe is stored; measure one with `freerun calibrate RECIPE`")
    return _from_data_sheets(recipe)


def _find_calibration(recipe: Recipe) -> Calibration | None:
    """The calibration of this name, else one from the newest stored run with the same model and machine."""
    if (file := CALIBRATIONS / f"{recipe.run.name}.toml").is_file():
        return read_calibration(file)
    directory = Path(recipe.run.directory)
    found = [RunDirectory(path) for path in directory.iterdir()] if directory.is_dir() else []
    for run in sorted((run for run in found if run.config.is_file()), key=_age):
        try:
            if _what_curves_depend_on(load_recipe(run.config)) == _what_curves_depend_on(recipe):
                return calibrate_run(run.path)
        except FreerunError:
            continue  # too short, damaged, or of another version: try the next one
    return None


def _age(run: RunDirectory) -> float:
    return -run.config.stat().st_mtime


def _what_curves_depend_on(recipe: Recipe) -> tuple[object, ...]:
    engine, train, data = recipe.engine, recipe.train, recipe.data
    return (
        recipe.model.path, recipe.lora, recipe.runtime.backend, data.task, data.path, recipe.reward.grader,
        recipe.sampling.max_completion_tokens, recipe.objective.uses_proximal,
        engine.backend, engine.num_workers, engine.num_gpus, engine.num_threads, engine.device, engine.dtype,
        train.num_ranks, train.num_threads, train.device, train.dtype, train.micro_batch_tokens,
    )  # fmt: skip


def _measured(recipe: Recipe, calibration: Calibration) -> _Basis:
    engine, trainer = calibration.engine, calibration.trainer
    return _Basis(
        calibration.setup(_steady(recipe), num_warm_steps=steady_steps(recipe.buffer.max_staleness)[0]),
        f"this machine, by the curves and lengths of run {calibration.run}",
        f"its engine fits within {engine.error:.0%}, its trainer within {trainer.error:.0%}; settings that differ "
        "from that run's may be off by more (docs/results/simulation.md)",
        spread=1.0,
    )


def _from_matrix_products(recipe: Recipe) -> _Basis:
    """Estimated from two operations per parameter and sampled token, eight per trained one, on shared cores."""
    num_parameters, speed = count_parameters(Path(recipe.model.path)), _operations_per_second()
    num_workers, num_ranks = recipe.engine.num_workers, recipe.train.num_ranks
    engine_speed = speed / (num_workers + num_ranks)
    trainer_speed = speed if lends_cores(recipe) else num_ranks * engine_speed
    sampled, workload = 2 * num_parameters / engine_speed, _guess(recipe)
    setup = Setup(
        recipe=_steady(recipe),
        engine_costs=LinearEngine(step=0.0, sequence=sampled, cached_token=0.0, prefill_token=sampled),
        trainer_costs=LinearTrainer(step=0.0, token=8 * num_parameters / trainer_speed),
        lengths=workload.lengths,
        prompt_tokens=workload.prompt_tokens,
        num_warm_steps=steady_steps(recipe.buffer.max_staleness)[0],
    )
    return _Basis(
        setup,
        f"this machine, by the speed of a matrix product now and a guess of completions: {workload.words}",
        f"not from measurements of this model: a factor of {_SPREAD:g} either way is usual, more if completions "
        "have other lengths; `freerun calibrate RECIPE` measures for a minute",
        spread=_SPREAD,
    )


def _from_data_sheets(recipe: Recipe) -> _Basis:
    machine = Machine(GPUS[ASSUMED_GPU], ASSUMED_GPU, find_shape("", recipe.model.path))
    workload = _guess(recipe)
    return _Basis(
        setup_of(recipe, machine, split_of(recipe), workload),
        f"GPUs like {ASSUMED_GPU} (`freerun plan --kind` takes others) and a guess of completions: "
        f"{workload.words}",
        error_text(machine).partition(". Nothing")[0],
        spread=1.0,
    )


def _guess(recipe: Recipe) -> Workload:
    """Assume completions of a share of the allowed length; prompts as they are."""
    source = read_inputs(recipe, Path(recipe.model.path)).source
    assert source is not None, "a recipe that generates has prompts"
    prompts = [source.at(ordinal) for ordinal in range(min(_NUM_PROMPTS_COUNTED, source.epoch_size))]
    mean = GUESSED_SHARE * recipe.sampling.max_completion_tokens
    return guess_workload(
        recipe,
        mean=max(1.0, mean),
        prompt_tokens=max(1, round(fmean(len(prompt.token_ids) for prompt in prompts))),
    )


def _steady(recipe: Recipe) -> Recipe:
    """The recipe with just enough steps to measure its pace."""
    num_steps = sum(steady_steps(recipe.buffer.max_staleness))
    train, engine = replace(recipe.train, num_steps=num_steps), replace(recipe.engine, min_workers=0)
    return replace(recipe, train=train, engine=engine)


def _operations_per_second() -> float:
    """Speed of float32 matrix products on all cores; by CPU time, because other programs may be running."""
    matrix = np.ones((_SIDE, _SIDE), np.float32)
    num_done, began = 0, time.process_time()
    while (seconds := time.process_time() - began) < _MEASURE_SECONDS:
        matrix @ matrix
        num_done += 1
    return len(os.sched_getaffinity(0)) * 2 * _SIDE**3 * num_done / seconds


def range_of_times(low: float, high: float) -> str:
    """For example `roughly 2 min to 8 min`; a range with equal ends is shown as one value."""
    shortest, longest = _duration(low), _duration(high)
    return f"roughly {shortest} to {longest}" if shortest != longest else f"about {longest}"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
