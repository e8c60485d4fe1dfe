"""Sessions with slow tools under the real controller, in virtual time: busy engines, and a bound that holds."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from inline_agents import AgentWorld

from freerun.config.engine import EngineConfig
from freerun.config.recipe import BufferConfig, CheckpointConfig, EvalConfig, Recipe, RuntimeConfig, SamplingConfig
from freerun.config.rollout import RolloutConfig
from freerun.config.train import TrainConfig
from freerun.errors import TruncatedError
from freerun.events.events import EvalFinished, EvalSkipped, StepFinished
from freerun.rollout.episode import Episode, Policy, Task
from freerun.simulation.virtual_time import run_in_virtual_time

NUM_SLOTS = 16


def recipe_of(*, prompts_per_step: int, num_steps: int, max_staleness: int, **rollout: Any) -> Recipe:
    return Recipe(
        sampling=SamplingConfig(group_size=4),
        engine=EngineConfig(num_slots=NUM_SLOTS),
        rollout=RolloutConfig(episode="tests:episode", max_session_tokens=4096, **rollout),
        buffer=BufferConfig(max_staleness=max_staleness),
        train=TrainConfig(num_steps=num_steps, prompts_per_step=prompts_per_step, num_minibatches=1),
        eval=EvalConfig(every_steps=5),
        checkpoint=CheckpointConfig(every_steps=5),
        runtime=RuntimeConfig(stall_seconds=2000.0),
    )


def make_episode(rng: random.Random, *, max_turns: int, tool_seconds: tuple[float, float]) -> Episode:
    """Turns with a tool between each two; both as the dice fall."""

    async def episode(task: Task, policy: Policy) -> float:
        chat = policy.chat()
        try:
            await chat.say("a?")
            for _ in range(rng.randrange(max_turns)):
                await asyncio.sleep(rng.uniform(*tool_seconds))
                await chat.say("b?")
        except TruncatedError:
            return 0.5
        return float(rng.random() < 0.5)

    return episode


def test_tools_ten_times_slower_than_generation_leave_the_engines_busy(tmp_path: Path) -> None:
    rng = random.Random(0)
    recipe = recipe_of(prompts_per_step=16, num_steps=8, max_staleness=8, session_seconds=1000.0)
    world = AgentWorld(recipe, rng, failure_rate=0.0, tail=1.0)
    # A call takes one second on average, a tool ten: at 16 slots about 176 sessions are under way.
    agents = world.play(make_episode(rng, max_turns=9, tool_seconds=(5.0, 15.0)), tmp_path / "model")
    assert run_in_virtual_time(world.session("end")) == 8
    world.check_ledger()
    steps = [event.seconds for event in world.events if isinstance(event, StepFinished)]
    assert world.engines.share_busy(30.0, steps[-2]) > 0.9
    assert agents.most_running > 5 * NUM_SLOTS


def test_no_more_sessions_run_than_there_are_seats(tmp_path: Path) -> None:
    rng = random.Random(0)
    recipe = recipe_of(prompts_per_step=8, num_steps=4, max_staleness=8, sessions_per_worker=30)
    world = AgentWorld(recipe, rng, failure_rate=0.0, tail=1.0)
    agents = world.play(make_episode(rng, max_turns=4, tool_seconds=(5.0, 15.0)), tmp_path / "model")
    assert run_in_virtual_time(world.session("end")) == 4
    assert 24 <= agents.most_running <= 28 + 4, "seven groups of four, and an evaluation of two prompts"


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_holds_with_sessions_of_1_to_30_turns_and_tools_of_0_to_30_seconds(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    seconds = rng.choice([20.0, 100.0, 1000.0])
    recipe = recipe_of(
        prompts_per_step=rng.choice([1, 2, 3]),
        num_steps=12,
        max_staleness=rng.choice([0, 1, 2, 4]),
        session_seconds=seconds,
        sessions_per_worker=rng.choice([4, 256]),
    )
    world = AgentWorld(recipe, rng, failure_rate=0.0, tail=rng.choice([1, 5]))
    world.play(make_episode(rng, max_turns=30, tool_seconds=(0.0, 30.0)), tmp_path / "model")
    # The simulated trainer asserts the bound of every group at every step.
    for ending in [rng.choice(["stop", "kill", "end"]) for _ in range(3)] + ["end"]:
        version = run_in_virtual_time(world.session(ending))
        world.check_ledger()
        if version == 12 and ending == "end":
            break
    assert world.saved is not None
    assert world.saved.version == 12
    evaluations = [event for event in world.events if isinstance(event, EvalFinished)]
    assert evaluations
    assert all(event.num_failed == 0 for event in evaluations)
    skipped = [event.reason for event in world.events if isinstance(event, EvalSkipped)]
    assert not [reason for reason in skipped if "sampled by versions" in reason], "held-out turns of two versions"
