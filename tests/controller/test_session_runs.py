"""The controller with sessions of several calls and sequences, under virtual time: it counts samples."""

import random
from typing import Any

import pytest
from simulated_sessions import SessionWorld, num_parts

from freerun.config.engine import EngineConfig
from freerun.config.objective import ObjectiveConfig
from freerun.config.recipe import BufferConfig, CheckpointConfig, EvalConfig, Recipe, SamplingConfig
from freerun.config.reward import RewardConfig
from freerun.config.train import TrainConfig
from freerun.events.events import EvalFinished, GroupFinished, StepFinished
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.trainer.check import check_trajectory
from freerun.types import Trajectory

NUM_STEPS = 15


@pytest.mark.parametrize("seed", range(20))
def test_sessions_are_trained_on_once_and_none_too_late_through_stops_and_kills(seed: int) -> None:
    rng = random.Random(seed)
    group_size = rng.choice([1, 2, 4])
    recipe = Recipe(
        sampling=SamplingConfig(group_size=group_size),
        engine=EngineConfig(num_slots=rng.choice([4, 64])),
        reward=RewardConfig(max_failures_in_row=1000),
        buffer=BufferConfig(
            max_staleness=rng.choice([0, 1, 4]),
            policy=rng.choice(["wait", "wait", "drop", "requeue"]),
            whole_batches=seed % 4 == 3,
            keep_fresh=seed % 4 in (0, 1),
        ),
        objective=ObjectiveConfig(dynamic_sampling=group_size > 1 and rng.random() < 0.5),
        train=TrainConfig(num_steps=NUM_STEPS, prompts_per_step=rng.choice([1, 2, 3]), num_minibatches=1),
        eval=EvalConfig(every_steps=5),
        checkpoint=CheckpointConfig(every_steps=rng.choice([1, 3])),
    )
    world = SessionWorld(recipe, rng, failure_rate=rng.choice([0, 0.2]), tail=rng.choice([1, 20]))
    for ending in [rng.choice(["stop", "kill", "end"]) for _ in range(3)] + ["end"]:
        run_in_virtual_time(world.session(ending))
        world.check_ledger()
    assert world.saved is not None
    assert world.saved.version == NUM_STEPS


def finished_world(**settings: Any) -> SessionWorld:
    recipe = Recipe(
        sampling=SamplingConfig(group_size=3),
        train=TrainConfig(num_steps=8, prompts_per_step=2, num_minibatches=1),
        **settings,
    )
    world = SessionWorld(recipe, random.Random(1), failure_rate=0.0, tail=1.0)
    run_in_virtual_time(world.session("end"))
    return world


def test_a_step_has_whole_groups_of_sessions_and_counts_their_sampled_tokens() -> None:
    world = finished_world()
    finished = {e.ordinal: e for e in world.events if isinstance(e, GroupFinished)}
    steps = [event for event in world.events if isinstance(event, StepFinished)]
    parts: list[int] = []
    for step in steps:
        assert [group.num_samples for group in step.groups] == [3, 3]
        for group in step.groups:
            parts += num_parts(group.trajectories)
            event = finished[group.ordinal]
            assert event.num_tokens == sum(len(t.completion.versions) for t in group.trajectories)
            assert event.mean_reward == pytest.approx(sum(reward.value for reward in group.rewards) / 3)
    assert len(parts) == 8 * 2 * 3
    assert max(parts) > 1


def test_what_a_simulated_session_becomes_can_be_trained_on() -> None:
    world = finished_world()
    trained: list[Trajectory] = [
        t for e in world.events if isinstance(e, StepFinished) for g in e.groups for t in g.trajectories
    ]
    for trajectory in trained:
        check_trajectory(trajectory, version=8)
    assert any(t.completion.num_sampled < len(t.completion.token_ids) for t in trained)


def test_an_evaluation_counts_sessions() -> None:
    world = finished_world(eval=EvalConfig(every_steps=4))
    evals = [event for event in world.events if isinstance(event, EvalFinished)]
    assert evals
    for event in evals:
        assert all(prompt.num_samples == 3 for prompt in event.prompts)
        assert all(0 <= prompt.num_correct <= 3 for prompt in event.prompts)
