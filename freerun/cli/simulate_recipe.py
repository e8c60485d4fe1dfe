"""The half of `freerun simulate` that runs a recipe: the lines of `freerun train`, in virtual time."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from freerun.cli.plan import machine_of, workload_of
from freerun.config.recipe import Recipe
from freerun.errors import FreerunError

if TYPE_CHECKING:
    from freerun.events.events import AnyEvent
    from freerun.simulation.run import Setup


def simulate_recipe(args: argparse.Namespace, recipe: Recipe) -> int:
    """Print what the run would have printed, then its summary and the possible error."""
    from freerun.events.events import EngineReport
    from freerun.events.metrics import RunState
    from freerun.simulation.lanes import Lanes
    from freerun.simulation.occupation import LINE_WIDTH, describe_occupation
    from freerun.simulation.run import check_can_simulate, simulate
    from freerun.terminal.lines import describe_event

    check_can_simulate(recipe)
    setup, error = _setup(args, recipe)
    state, lanes = RunState(), Lanes()

    def show(event: "AnyEvent") -> None:
        state(event)
        lanes(event)
        if not isinstance(event, EngineReport) and (line := describe_event(state, event)):
            print(f"{_clock(event.seconds)}  {line}")

    outcome = simulate(setup, emit=show)
    print()
    for line in [*describe_occupation(outcome), *lanes.describe(outcome, LINE_WIDTH)]:
        print(line)
    print(f"error: {error}")
    return 0


def _setup(args: argparse.Namespace, recipe: Recipe) -> tuple["Setup", str]:
    """The setup of the recipe on GPUs or on the calibrated machine, and the possible error of its figures."""
    if args.gpus is None:
        return _calibrated(args, _shortened(recipe, args.steps))
    from freerun.simulation.plan_text import error_text
    from freerun.simulation.splits import setup_of, split_of

    machine, split = machine_of(args, recipe), split_of(recipe)
    if split.num_gpus != args.gpus:
        raise FreerunError(
            f"the recipe uses {split.num_rollout_gpus} + {split.num_trainer_gpus} GPUs (engine.num_workers x "
            f"engine.num_gpus + train.num_ranks), not --gpus {args.gpus}; change them, or ask `freerun plan`"
        )
    num_steps = args.steps or recipe.train.num_steps
    return setup_of(recipe, machine, split, workload_of(args, recipe), num_steps=num_steps), error_text(machine)


def _calibrated(args: argparse.Namespace, recipe: Recipe) -> tuple["Setup", str]:
    from freerun.simulation.calibration import read_calibration

    if args.calibration is None:
        raise FreerunError(
            "freerun simulate needs --gpus N for a run on GPUs, or --calibration FILE for one on the machine that "
            "`freerun calibrate` has measured"
        )
    calibration = read_calibration(args.calibration)
    return calibration.setup(recipe), (
        f"times are those of run {calibration.run}: its engine fits within {calibration.engine.error:.0%}, its "
        f"trainer within {calibration.trainer.error:.0%}; other settings may be off by more "
        "(docs/results/simulation.md). Evaluations and checkpoints are left out"
    )


def _shortened(recipe: Recipe, num_steps: int | None) -> Recipe:
    return replace(recipe, train=replace(recipe.train, num_steps=num_steps)) if num_steps else recipe


def _clock(seconds: float) -> str:
    """`0:12:34`, from the start of the simulated run."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
