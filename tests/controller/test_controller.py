"""The real controller, gate and buffer against simulated workers, in virtual time.

Rollouts of long-tailed duration, failures, filters, slow loads, stops and kills at any moment: whatever
happens, each prompt is trained on once or still owed, and no staleness exceeds its bound.
"""

import asyncio
import dataclasses
import random
from itertools import pairwise
from typing import Any

import pytest
from simulated_run import NUM_PROMPTS, TIMES_TABLES, SimulatedEngines, World

from freerun.config.data import DataConfig
from freerun.config.engine import EngineConfig
from freerun.config.objective import ObjectiveConfig
from freerun.config.recipe import BufferConfig, CheckpointConfig, EvalConfig, Recipe, RuntimeConfig, SamplingConfig
from freerun.config.reward import RewardConfig
from freerun.config.train import TrainConfig
from freerun.errors import PinLostError, RolloutError, WorkerError
from freerun.events.events import Activity, AnyEvent, EvalFinished, EvalSkipped, GroupFinished, StepFinished
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import (
    Doing,
    Prompt,
    Trajectory,
)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_each_prompt_is_trained_on_once_and_none_too_late(seed: int) -> None:
    rng = random.Random(seed)
    group_size = rng.choice([1, 2, 4])
    recipe = Recipe(
        sampling=SamplingConfig(group_size=group_size),
        engine=EngineConfig(num_slots=rng.choice([1, 4, 64])),
        reward=RewardConfig(max_failures_in_row=1000),
        buffer=BufferConfig(
            max_staleness=rng.choice([0, 1, 2, 4]),
            policy=rng.choice(["wait", "wait", "drop", "requeue"]),
            whole_batches=seed % 4 == 3,
            keep_fresh=seed % 4 in (0, 1),
        ),
        objective=ObjectiveConfig(dynamic_sampling=group_size > 1 and rng.random() < 0.5),
        data=rng.choice([TIMES_TABLES, TIMES_TABLES, banded(0.4, 0.6)]),
        train=TrainConfig(num_steps=25, prompts_per_step=rng.choice([1, 2, 3]), num_minibatches=1),
        eval=EvalConfig(every_steps=rng.choice([1, 3, 7])),
        checkpoint=CheckpointConfig(every_steps=rng.choice([1, 2, 5])),
    )
    world = World(recipe, rng, failure_rate=rng.choice([0, 0.1, 0.4]), tail=rng.choice([1, 5, 30]))
    for ending in [rng.choice(["stop", "kill", "end"]) for _ in range(6)] + ["end"]:
        version = run_in_virtual_time(world.session(ending))
        world.check_ledger()
        if version == 25 and ending == "end":
            break
    assert world.saved is not None
    assert world.saved.version == 25


def test_prompts_that_teach_nothing_are_passed_over_and_tried_again() -> None:
    world = small_world(data=banded(0.1, 0.9))
    world.verdicts = lambda prompt: [prompt.key != "3"] * 2 if prompt.key in "13" else [True, False]  # type: ignore[method-assign]
    run_in_virtual_time(world.session("end"))
    world.check_ledger()
    assert world.saved is not None
    passed_over = [e.ordinal for e in world.events if isinstance(e, GroupFinished) and e.outcome == "passed_over"]
    assert {ordinal % NUM_PROMPTS for ordinal in passed_over} == {1, 3}
    assert len(passed_over) == world.saved.buffer.totals["passed_over"]
    visits = [ordinal for ordinal in sorted(world.trained) if ordinal % NUM_PROMPTS == 3]
    assert visits[1] - visits[0] == 3 * NUM_PROMPTS


def test_a_run_in_which_every_prompt_is_outside_the_band_goes_on() -> None:
    world = small_world(data=banded(0.1, 0.9))
    world.verdicts = lambda prompt: [False, False]  # type: ignore[method-assign]
    assert run_in_virtual_time(world.session("end")) == 12
    world.check_ledger()


def banded(min_pass_rate: float, max_pass_rate: float) -> DataConfig:
    return dataclasses.replace(TIMES_TABLES, min_pass_rate=min_pass_rate, max_pass_rate=max_pass_rate)


def small_world(**settings: Any) -> World:
    recipe = Recipe(
        sampling=SamplingConfig(group_size=2),
        train=TrainConfig(num_steps=12, prompts_per_step=2, num_minibatches=1),
        **settings,
    )
    return World(recipe, random.Random(0), failure_rate=0.0, tail=1.0)


def test_generation_goes_on_while_the_trainer_trains_and_checkpoints_are_written() -> None:
    world = small_world(checkpoint=CheckpointConfig(every_steps=1))
    run_in_virtual_time(world.session("end"))
    steps = [event for event in world.events if isinstance(event, StepFinished)]
    finished = [event.seconds for event in world.events if type(event).__name__ == "GroupFinished"]
    overlapping = [
        step
        for step in steps
        if any(step.seconds - step.step_seconds < seconds < step.seconds for seconds in finished)
    ]
    assert len(overlapping) > len(steps) / 2


def test_a_slow_grader_does_not_keep_the_engines_idle() -> None:
    world = small_world(engine=EngineConfig(num_slots=8), buffer=BufferConfig(max_staleness=30))
    world.grading_seconds = 40.0
    run_in_virtual_time(world.session("end"))
    world.check_ledger()
    # All that the gate admits is decoded before the first grade, four groups at a time.
    first_grade = min(event.seconds for event in world.events if isinstance(event, GroupFinished))
    num_decoding = [number for seconds, number in world.engines.decoding if seconds < first_grade]
    assert len(num_decoding) == 2 * (30 + 1) * 2, "each group begins and ends decoding"
    assert max(num_decoding) == 4
    # From then on a place that is freed is taken in the same turn, until the gate is closed.
    full = num_decoding.index(4)
    assert set(num_decoding[full:-4]) == {3, 4}


def test_a_group_between_two_turns_leaves_its_slots_to_another() -> None:
    world = small_world(engine=EngineConfig(num_slots=2), buffer=BufferConfig(max_staleness=30))
    workflow = world.workflow

    async def two_turns(prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        await workflow(prompt, generator, grader)
        await asyncio.sleep(100)  # a tool works
        return await workflow(prompt, generator, grader)

    world.workflow = two_turns  # type: ignore[method-assign]
    assert run_in_virtual_time(world.session("end")) == 12
    world.check_ledger()
    assert sum(seconds < 100 for seconds, _ in world.engines.decoding) > 40


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_whole_batches_start_together_when_nothing_runs_and_overlap_with_training(max_staleness: int) -> None:
    world = small_world(buffer=BufferConfig(max_staleness=max_staleness, whole_batches=True))
    spans: dict[int, tuple[float, float]] = {}
    workflow = world.workflow

    async def timed(prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        begin = asyncio.get_running_loop().time()
        try:
            return await workflow(prompt, generator, grader)
        finally:
            spans[prompt.ordinal] = begin, asyncio.get_running_loop().time()

    world.workflow = timed  # type: ignore[method-assign]
    assert run_in_virtual_time(world.session("end")) == 12
    batches = [(spans[ordinal], spans[ordinal + 1]) for ordinal in range(0, 24, 2)]
    for one, other in batches:
        assert one[0] == other[0]
    for batch, following in pairwise(batches):
        assert max(end for _, end in batch) <= following[0][0]
    steps = [event for event in world.events if isinstance(event, StepFinished)]
    assert [[group.ordinal for group in step.groups] for step in steps] == [[2 * v, 2 * v + 1] for v in range(12)]
    starts = {batch[0][0] for batch in batches}
    overlapping = [s for s in steps if any(s.seconds - s.step_seconds <= start < s.seconds for start in starts)]
    assert bool(overlapping) == (max_staleness > 0)


def test_evaluations_are_pinned_while_training_goes_on() -> None:
    world = small_world(eval=EvalConfig(every_steps=3))
    world.evaluation_delay = 1.0
    run_in_virtual_time(world.session("end"))
    evaluations = {event.version: event for event in world.events if isinstance(event, EvalFinished)}
    assert list(evaluations) == [0, 3, 6, 9, 12]
    assert all(e.num_failed == 0 and len(e.prompts) == e.num_prompts for e in evaluations.values())
    steps = {e.result.version: e.seconds for e in world.events if isinstance(e, StepFinished)}
    assert sum(evaluations[v].seconds > steps[v + 1] for v in (3, 6, 9)) > 0, "no evaluation outlived its version"


def test_an_evaluation_that_is_due_while_another_runs_is_skipped_and_said_so() -> None:
    world = small_world(eval=EvalConfig(every_steps=1))
    world.evaluation_delay = 20.0
    run_in_virtual_time(world.session("end"))
    finished = [event.version for event in world.events if isinstance(event, EvalFinished)]
    skipped = [event for event in world.events if isinstance(event, EvalSkipped)]
    assert sorted([*finished, *(event.version for event in skipped)]) == list(range(13))
    assert finished[-1] == 12, "the last version is always evaluated"
    assert skipped[0].reason == "the evaluation of version 0 still runs"


def test_an_evaluation_whose_version_is_lost_or_mixed_is_skipped_with_the_reason() -> None:
    world = small_world(eval=EvalConfig(every_steps=4))

    async def lose_or_mix(prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        if generator.version == 4 and prompt.ordinal == -2:
            raise PinLostError("version 4 is gone")
        if generator.version == 8:
            generator = generator.engines  # which go on to newer versions
            await asyncio.sleep(5)
        return await world.workflow(prompt, generator, grader)

    world.evaluation_workflow = lose_or_mix  # type: ignore[method-assign]
    run_in_virtual_time(world.session("end"))
    assert [event.version for event in world.events if isinstance(event, EvalFinished)] == [0, 12]
    skipped = {event.version: event.reason for event in world.events if isinstance(event, EvalSkipped)}
    assert skipped[4] == "version 4 is gone"
    assert "the generator did not keep 8" in skipped[8]


def test_an_evaluation_of_which_nothing_could_be_graded_is_skipped_with_the_reason() -> None:
    world = small_world(eval=EvalConfig(every_steps=100))

    async def fail(prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        raise RolloutError("grading failed:\nTraceback\nValueError: no number")

    world.evaluation_workflow = fail  # type: ignore[method-assign]
    run_in_virtual_time(world.session("end"))
    assert not any(isinstance(event, EvalFinished) for event in world.events)
    reasons = {event.version: event.reason for event in world.events if isinstance(event, EvalSkipped)}
    assert reasons[0] == "none of its 2 prompts could be graded; the last: grading failed: ValueError: no number"


def test_the_trainer_is_not_said_to_wait_for_nobody_while_rollouts_run() -> None:
    world = small_world()
    run_in_virtual_time(world.session("end"))
    said = [event for event in world.events if isinstance(event, Activity)]
    first = [event.doing for event in said if event.seconds == said[0].seconds]
    assert first[-1] == Doing("waiting", "0 of 2 groups, oldest rollout 0 (started at version 0)")


def test_rollouts_that_always_fail_stop_the_run_and_keep_the_steps_made() -> None:
    world = small_world(reward=RewardConfig(max_failures_in_row=5), checkpoint=CheckpointConfig(every_steps=1000))

    def break_down(event: AnyEvent) -> None:
        if isinstance(event, StepFinished) and event.result.version == 4:
            world.failure_rate = 1.0

    world.emit = break_down  # type: ignore[method-assign]
    with pytest.raises(RolloutError, match="5 rollouts in a row failed"):
        run_in_virtual_time(world.session("end"))
    assert world.saved is not None
    assert world.saved.version >= 4


def test_rollouts_that_never_finish_end_in_an_error_that_names_them() -> None:
    world = small_world(runtime=RuntimeConfig(stall_seconds=50))

    async def hang(prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        await asyncio.Event().wait()
        raise AssertionError

    world.workflow = hang  # type: ignore[method-assign]
    with pytest.raises(WorkerError, match=r"nothing was generated or graded for 50 s; waiting for 0 of 2 groups"):
        run_in_virtual_time(world.session("end"))
    # Beyond the 50 s the pool had its chance to replace an engine that was stuck.
    assert 50 < world.ended < 70


def test_a_stall_for_want_of_engines_says_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    world = small_world(runtime=RuntimeConfig(stall_seconds=50))

    async def hang(prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        await asyncio.Event().wait()
        raise AssertionError

    world.workflow = hang  # type: ignore[method-assign]
    monkeypatch.setattr(SimulatedEngines, "num_ready", 0)
    monkeypatch.setattr(SimulatedEngines, "missing", lambda engines: "no rollout worker has a place")
    with pytest.raises(WorkerError, match=r"waiting for 0 of 2 groups.*; no rollout worker has a place"):
        run_in_virtual_time(world.session("end"))


def test_rollouts_that_dynamic_sampling_always_leaves_out_end_the_run() -> None:
    world = small_world(objective=ObjectiveConfig(dynamic_sampling=True))
    world.verdicts = lambda prompt: [True, True]  # type: ignore[method-assign]
    with pytest.raises(
        RolloutError, match=r"40 groups in a row were all equal.*objective.dynamic_sampling = false"
    ):
        run_in_virtual_time(world.session("end"))


def test_a_workflow_that_returns_too_few_trajectories_is_a_failure_that_says_so() -> None:
    world = small_world(reward=RewardConfig(max_failures_in_row=3))
    world.verdicts = lambda prompt: []  # type: ignore[method-assign]
    with pytest.raises(
        RolloutError, match=r"returned samples \[\] for a group of 2; return at least one trajectory for each"
    ):
        run_in_virtual_time(world.session("end"))


def test_an_evaluation_that_a_stop_cuts_off_is_said_to_be_missing() -> None:
    world = small_world(eval=EvalConfig(every_steps=100))
    world.evaluation_delay = 1e6
    run_in_virtual_time(world.session("stop"))
    reasons = {event.version: event.reason for event in world.events if isinstance(event, EvalSkipped)}
    assert reasons[0] == "the run was stopped before it was over"
