"""The real controller, gate, buffer and sessions of live clients over simulated engines, in virtual time."""

import dataclasses
import random

import pytest
from simulated_traffic import LiveWorld
from tokenizer_kinds import byte_level, load

from freerun.chat.rendering import Renderer
from freerun.config.online import OnlineConfig
from freerun.config.recipe import BufferConfig, CheckpointConfig, EvalConfig, Recipe, SamplingConfig
from freerun.config.train import TrainConfig
from freerun.events.events import GroupFinished
from freerun.simulation.virtual_time import run_in_virtual_time


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(load(tmp_path_factory.mktemp("model"), byte_level()), use_chat_template=False)


def a_world(seed: int, renderer: Renderer, *, num_steps: int = 12) -> LiveWorld:
    rng = random.Random(seed)
    recipe = Recipe(
        online=OnlineConfig(feedback_seconds=rng.choice([2, 10])),
        sampling=SamplingConfig(group_size=1),
        buffer=BufferConfig(max_staleness=rng.choice([0, 1, 4]), policy="drop"),
        train=TrainConfig(num_steps=num_steps, prompts_per_step=rng.choice([1, 3, 6]), num_minibatches=1),
        eval=EvalConfig(every_steps=rng.choice([1, 5])),
        checkpoint=CheckpointConfig(every_steps=rng.choice([1, 3])),
    )
    return LiveWorld(recipe, rng, renderer)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_session_is_trained_on_once_and_none_too_late(seed: int, renderer: Renderer) -> None:
    world = a_world(seed, renderer)
    for ending in [world.rng.choice(["stop", "kill", "end"]) for _ in range(4)] + ["end"]:
        version = run_in_virtual_time(world.session(ending))
        world.check_ledger()
        if version == 12 and ending == "end":
            break
    assert world.saved is not None
    assert world.saved.version == 12
    assert world.num_replies > world.num_ratings > 0


def test_sessions_that_nobody_rates_are_counted_and_never_trained_on(renderer: Renderer) -> None:
    world = a_world(3, renderer)
    world.rating_share, world.max_seconds = 0.0, 10_000
    run_in_virtual_time(world.session("stop"))
    assert world.ended > world.recipe.runtime.stall_seconds, "a run may wait for its clients"
    outcomes = [event.outcome for event in world.events if isinstance(event, GroupFinished)]
    assert {*outcomes} == {"unrated"}
    assert world.trained == {}
    assert len(outcomes) > 10


def test_sessions_beyond_the_most_that_wait_are_served_and_not_recorded(renderer: Renderer) -> None:
    world = a_world(3, renderer)
    world.recipe = dataclasses.replace(world.recipe, online=OnlineConfig(feedback_seconds=5, max_sessions=2))
    run_in_virtual_time(world.session("end"))
    assert world.saved is not None
    assert len(world.saved.buffer.to_restart) <= 2
    assert world.num_replies > 2 * world.saved.cursor
    world.check_ledger()


def test_sessions_that_were_open_at_a_stop_are_lost_and_counted(renderer: Renderer) -> None:
    world = a_world(1, renderer)
    run_in_virtual_time(world.session("stop"))
    assert world.saved is not None
    lost = world.saved.buffer.to_restart
    assert lost
    world.events.clear()
    run_in_virtual_time(world.session("end"))
    given_up = [e.ordinal for e in world.events if isinstance(e, GroupFinished) and "stopped" in e.reason]
    assert given_up == [*lost]
    assert not {*lost} & world.trained.keys()
    world.check_ledger()
