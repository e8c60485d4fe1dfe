"""What is known about a group when it is over: its times, who sampled it, and what is left of a lost one."""

import asyncio
import math
import random

import numpy as np
import pytest
from simulated_run import World
from tiny_models import make_request

from freerun.config.objective import ObjectiveConfig
from freerun.config.recipe import BufferConfig, Recipe, SamplingConfig, StalenessPolicy
from freerun.config.reward import RewardConfig
from freerun.config.train import TrainConfig
from freerun.controller.group_life import GroupLife, count_interrupts
from freerun.events.events import GroupFinished, StepFinished
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import Completion, Request, Span


def run(*, policy: StalenessPolicy = "wait", filters: bool = False, failure_rate: float = 0.0) -> World:
    recipe = Recipe(
        sampling=SamplingConfig(group_size=2),
        reward=RewardConfig(max_failures_in_row=1000),
        buffer=BufferConfig(max_staleness=1, policy=policy),
        objective=ObjectiveConfig(dynamic_sampling=filters),
        train=TrainConfig(num_steps=12, prompts_per_step=2, num_minibatches=1),
    )
    world = World(recipe, random.Random(1), failure_rate=failure_rate, tail=30.0)
    world.grading_seconds = 0.25
    run_in_virtual_time(world.session("end"))
    return world


def groups_of(world: World, outcome: str) -> list[GroupFinished]:
    return [e for e in world.events if isinstance(e, GroupFinished) and e.outcome == outcome]


def test_a_group_says_when_it_was_started_sampled_and_graded_and_by_whom() -> None:
    world = run()
    finished = groups_of(world, "buffered")
    assert finished
    for group in finished:
        assert group.started is not None
        assert group.sampled is not None
        assert group.started <= group.sampled
        assert group.graded == pytest.approx(group.sampled + 0.25)
        assert group.graded == pytest.approx(group.seconds)
        assert group.worker == "rollout-0"
        assert group.prompt is None
        assert not group.lost
    assert any(group.num_interrupts for group in finished)
    steps = [event for event in world.events if isinstance(event, StepFinished)]
    assert all(step.result.metrics["grade_seconds"] == pytest.approx(0.25) for step in steps)


def test_a_filtered_group_is_kept_whole() -> None:
    filtered = groups_of(run(filters=True), "filtered")
    assert filtered
    for group in filtered:
        assert group.prompt is not None
        assert group.prompt.ordinal == group.ordinal
        assert [trajectory.sample for trajectory in group.lost] == [0, 1]
        assert group.graded is not None


@pytest.mark.parametrize(("policy", "outcome"), [("drop", "dropped"), ("requeue", "requeued")])
def test_groups_that_became_too_old_are_kept_whole(policy: StalenessPolicy, outcome: str) -> None:
    lost = groups_of(run(policy=policy), outcome)
    assert lost
    for group in lost:
        assert group.prompt is not None
        assert len(group.lost) == 2


def test_a_group_that_failed_leaves_what_it_sampled_without_rewards() -> None:
    failed = groups_of(run(failure_rate=0.4), "failed")
    assert failed
    for group in failed:
        assert group.sampled is not None
        assert group.graded is None
        assert group.num_tokens == sum(t.completion.num_sampled for t in group.lost) > 0
        assert all(math.isnan(trajectory.reward.value) for trajectory in group.lost)


def test_interrupts_are_the_loads_that_a_completion_continued_under() -> None:
    def completion(*spans: Span) -> Completion:
        return Completion(
            token_ids=np.empty(0, np.int32),
            logprobs=np.empty(0, np.float32),
            spans=spans,
            finish_reason="stop",
            text="",
        )

    whole = completion(Span(3, 5))
    twice = completion(Span(3, 1), Span(4, 1), Span(6, 2))
    once = completion(Span(3, 1), Span(4, 3))
    session = completion(Span(3, 1), Span(None, 4), Span(5, 1, call=1))
    assert count_interrupts([whole]) == 0
    assert count_interrupts([whole, twice, once]) == 2
    assert count_interrupts([session]) == 0


def test_a_group_says_when_its_completions_had_slots_on_the_runs_clock() -> None:
    class Engines:
        async def generate(self, request: Request) -> tuple[Completion, ...]:
            return completion((2.0, 1.5)), completion((1.0, 0.0)), completion(None)

        def served_by(self, request_id: int) -> str:
            return "rollout-0"

    def completion(slot_seconds: tuple[float, float] | None) -> Completion:
        return Completion(
            token_ids=np.empty(0, np.int32),
            logprobs=np.empty(0, np.float32),
            spans=(),
            finish_reason="stop",
            text="",
            slot_seconds=slot_seconds,
        )

    life = GroupLife(Engines(), lambda: 10.0)  # type: ignore[arg-type]  # all that a group asks of them
    asyncio.run(life.generate(make_request(1)))
    assert life.facts["slots"] == ((8.0, 8.5), (9.0, 10.0))
