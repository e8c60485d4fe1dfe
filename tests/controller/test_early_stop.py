"""A run that is asked to ends early: at an accuracy that is enough, or when held-out accuracy no longer rises."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from health_runs import an_eval
from simulated_run import World

from freerun.config.recipe import BufferConfig, CheckpointConfig, EvalConfig, Recipe, SamplingConfig
from freerun.config.train import TrainConfig
from freerun.controller.early_stop import EarlyStop
from freerun.errors import ConfigError
from freerun.events.events import EvalFinished
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import Prompt, Reward, Trajectory


class MeasuredWorld(World):
    """Its held-out accuracy is a function of the version."""

    def __init__(self, recipe: Recipe, accuracy: Callable[[int], float]) -> None:
        super().__init__(recipe, random.Random(0), failure_rate=0.0, tail=1.0)
        self.accuracy = accuracy
        self.saved_versions: list[int] = []

    async def evaluation_workflow(self, prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        sampled = await super().evaluation_workflow(prompt, generator, grader)
        is_correct = self.accuracy(generator.version) > (abs(prompt.ordinal) - 0.5) / 2
        reward = Reward(float(is_correct), is_correct)
        return tuple(msgspec.structs.replace(one, reward=reward) for one in sampled)

    async def write(self, state: Any) -> None:
        await super().write(state)
        self.saved_versions.append(state.version)


def run_to_end(
    accuracy: Callable[[int], float], *, max_staleness: int = 4, keep_best: bool = True, **settings: Any
) -> tuple[MeasuredWorld, int]:
    recipe = Recipe(
        sampling=SamplingConfig(group_size=2),
        train=TrainConfig(num_steps=40, prompts_per_step=2, num_minibatches=1),
        buffer=BufferConfig(max_staleness=max_staleness),
        eval=EvalConfig(every_steps=4, **settings),
        checkpoint=CheckpointConfig(every_steps=100, keep_best=keep_best),
    )
    world = MeasuredWorld(recipe, accuracy)
    return world, run_in_virtual_time(world.session("end"))


def evaluated(world: World) -> list[int]:
    return [event.version for event in world.events if isinstance(event, EvalFinished)]


@pytest.mark.parametrize("max_staleness", [0, 4])
def test_a_run_ends_at_the_accuracy_that_is_enough(max_staleness: int) -> None:
    accuracy = lambda version: 1.0 if version >= 8 else 0.5  # noqa: E731 - a table of two rows
    world, version = run_to_end(accuracy, max_staleness=max_staleness, target_accuracy=0.9)
    assert 8 <= version < 16
    assert evaluated(world)[-1] == version, "the last version is always evaluated"
    assert len(evaluated(world)) == len(set(evaluated(world))), "and once"
    assert world.saved is not None
    assert world.saved.version == version


def test_a_run_ends_when_nothing_better_comes() -> None:
    world, version = run_to_end(lambda version: 0.5 if version < 4 else 1.0, stop_after=3)
    assert 16 <= version < 24
    assert 16 in evaluated(world)


def test_a_run_that_was_not_asked_to_goes_to_its_last_step() -> None:
    assert run_to_end(lambda version: 1.0)[1] == 40


def test_every_evaluated_version_has_a_checkpoint() -> None:
    world, _ = run_to_end(lambda version: 0.5)
    assert set(evaluated(world)) - {0} <= set(world.saved_versions)
    without, _ = run_to_end(lambda version: 0.5, keep_best=False)
    assert without.saved_versions == [40]


def test_the_reason_names_accuracy_version_and_setting() -> None:
    patient = EarlyStop(EvalConfig(stop_after=2), [an_eval(0, 0.3), an_eval(10, 0.5), an_eval(20, 0.5)])
    assert patient.reason == "", "one evaluation without a higher accuracy"
    patient.note(an_eval(30, 0.4))
    assert patient.reason == (
        "2 evaluations without a higher held-out accuracy than 50.0 % at version 10 (eval.stop_after)"
    )
    patient.note(an_eval(40, 0.6))
    assert patient.reason == ""
    enough = EarlyStop(EvalConfig(target_accuracy=0.6), [an_eval(10, 0.59)])
    assert enough.reason == ""
    enough.note(an_eval(20, 0.6))
    assert enough.reason == "held-out accuracy 60.0 % at version 20 reached eval.target_accuracy"


def test_evaluations_without_a_result_do_not_count() -> None:
    patient = EarlyStop(EvalConfig(stop_after=1), [an_eval(10, 0.5), an_eval(20, float("nan"))])
    assert patient.reason == ""


def test_a_version_that_is_evaluated_again_counts_once() -> None:
    patient = EarlyStop(EvalConfig(stop_after=2), [an_eval(10, 0.5), an_eval(20, 0.4), an_eval(20, 0.45)])
    assert patient.reason == ""


@pytest.mark.parametrize("setting", [{"stop_after": 2}, {"target_accuracy": 0.5}])
def test_ending_early_needs_an_evaluation(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="needs a held-out evaluation; raise"):
        Recipe(eval=EvalConfig(num_prompts=0, **setting))
