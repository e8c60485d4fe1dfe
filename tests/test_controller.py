"""The real controller, gate and buffer against simulated workers, in virtual time.

Rollouts of long-tailed duration, failures, filters, slow loads, stops and kills at any moment: whatever
happens, each prompt is trained on once or still owed, and no staleness exceeds its bound.
"""

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from virtual_time import run_in_virtual_time

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.data import DataConfig
from freerun.config.eval import EvalConfig
from freerun.config.objective import ObjectiveConfig
from freerun.config.recipe import (
    BufferConfig,
    CheckpointConfig,
    EngineConfig,
    Recipe,
    RuntimeConfig,
    SamplingConfig,
)
from freerun.config.reward import RewardConfig
from freerun.config.train import TrainConfig
from freerun.data.curriculum import Curriculum
from freerun.errors import PinLostError, RolloutError, WorkerError
from freerun.events.events import AnyEvent, EvalFinished, EvalSkipped, GroupFinished, StepFinished
from freerun.runtime.checkpoint import ControllerState
from freerun.runtime.controller import Controller, Stages
from freerun.types import (
    Completion,
    EngineStats,
    Grade,
    Group,
    Prompt,
    Publication,
    Request,
    Reward,
    Span,
    StepResult,
    Trajectory,
)

NUM_PROBLEMS = 7
TIMES_TABLES = DataConfig(task="times-tables")


class CountingSource:
    """Prompts that are nothing but their ordinal; a few problems come again and again."""

    fingerprint = "same data"

    def __init__(self) -> None:
        self.cursor = 0

    def at(self, ordinal: int) -> Prompt:
        ids = np.array([1], dtype=np.int32)
        return Prompt(ordinal=ordinal, key=str(ordinal % NUM_PROBLEMS), text="", answer="", token_ids=ids)

    def take(self) -> Prompt:
        self.cursor += 1
        return self.at(self.cursor - 1)

    def held_out(self, limit: int) -> list[Prompt]:
        return [self.at(-1 - i) for i in range(2)]


class SimulatedEngines:
    """Loads take a while, and some tokens are sampled before and some after."""

    def __init__(self, rng: random.Random) -> None:
        self.version = -1
        self.rng = rng
        self.pinned: Pinned | None = None

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        raise NotImplementedError("the simulated workflow makes its completions itself")

    async def load(self, published: Publication) -> None:
        await asyncio.sleep(self.rng.random() * 0.5)
        self.version = published.version
        await asyncio.sleep(self.rng.random())

    def pin(self, version: int) -> "Pinned":
        assert version == self.version, "pinned behind another load"
        assert self.pinned is None, "two versions pinned at once"
        self.pinned = Pinned(self, version)
        return self.pinned

    def stats(self) -> Sequence[EngineStats]:
        return []


@dataclass
class Pinned:
    """The engines at one version."""

    engines: SimulatedEngines
    version: int

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        raise NotImplementedError("the simulated workflow makes its completions itself")

    def release(self) -> None:
        self.engines.pinned = None


class SimulatedGraders:
    num_graded = 0

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        raise NotImplementedError("the simulated workflow grades by itself")


@dataclass
class SimulatedTrainer:
    """Checks on every step what the whole system promises."""

    rng: random.Random
    version: int
    max_staleness: int
    trained: dict[int, int]
    """Version that each ordinal was trained into."""
    is_busy: bool = False
    published: list[int] = field(default_factory=list)

    async def step(self, groups: Sequence[Group]) -> StepResult:
        assert not self.is_busy
        self.is_busy = True
        for group in groups:
            assert group.ordinal not in self.trained, "trained on twice"
            assert 0 <= self.version - group.oldest_version <= self.max_staleness
        await asyncio.sleep(self.rng.random() * 2)
        self.is_busy = False
        self.version += 1
        self.trained |= {group.ordinal: self.version for group in groups}
        return StepResult(version=self.version, metrics={}, staleness_counts={})

    def publish(self) -> Awaitable[Publication]:
        async def later(version: int) -> Publication:
            await asyncio.sleep(self.rng.random())
            return Publication(version=version, checksum="")

        assert not self.is_busy
        self.published.append(self.version)
        return later(self.version)

    def save(self, directory: str, *, version: int) -> Awaitable[None]:
        raise NotImplementedError("checkpoints are captured by the world")


class World:
    """One run over several sessions: what survives a stop or a kill is the last checkpoint, nothing else."""

    def __init__(self, recipe: Recipe, rng: random.Random, *, failure_rate: float, tail: float) -> None:
        self.recipe = recipe
        self.rng = rng
        self.failure_rate = failure_rate
        self.tail = tail
        self.evaluation_delay = 0.0
        self.trained: dict[int, int] = {}
        self.saved: ControllerState | None = None
        self.events: list[AnyEvent] = []

    def emit(self, event: AnyEvent) -> None:
        self.events.append(event)

    async def workflow(self, prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        versions = []
        for _ in range(self.rng.randint(1, 3)):
            versions.append(generator.version)
            await asyncio.sleep(self.rng.random() * (self.tail if self.rng.random() < 0.1 else 1))
        if self.rng.random() < self.failure_rate:
            raise RolloutError("as the dice fell")
        completion = Completion(
            token_ids=np.zeros(len(versions), np.int32),
            logprobs=np.zeros(len(versions), np.float32),
            spans=tuple(Span(version, 1) for version in versions),
            finish_reason="stop",
            text="",
        )
        return tuple(
            Trajectory(
                prompt=prompt, sample=i, completion=completion, reward=Reward(float(is_correct), is_correct)
            )
            for i, is_correct in enumerate(self.verdicts(prompt))
        )

    def verdicts(self, prompt: Prompt) -> list[bool]:
        return [self.rng.random() < 0.5 for _ in range(self.recipe.sampling.group_size)]

    async def evaluation_workflow(self, prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        await asyncio.sleep(self.evaluation_delay)
        return await self.workflow(prompt, generator, grader)

    async def session(self, ending: str) -> int:
        """Run until the end, a stop or a kill; returns the version that was reached."""
        recipe, source = self.recipe, CountingSource()
        buffer = TrajectoryBuffer(
            groups_per_batch=recipe.train.prompts_per_step,
            max_staleness=recipe.buffer.max_staleness,
            policy=recipe.buffer.policy,
            filter_zero_variance=recipe.objective.dynamic_sampling,
        )
        if self.saved is not None:
            source.cursor = self.saved.cursor
            buffer.restore(self.saved.buffer)
        gate = StalenessGate(
            batch_size=recipe.batch_size,
            max_staleness=recipe.buffer.max_staleness,
            version=buffer.version,
            num_buffered=buffer.counts.ready * recipe.sampling.group_size,
        )
        curriculum = Curriculum(
            min_pass_rate=recipe.data.min_pass_rate,
            max_pass_rate=recipe.data.max_pass_rate,
            resting=self.saved.resting if self.saved else {},
        )
        trainer = SimulatedTrainer(self.rng, buffer.version, recipe.buffer.max_staleness, self.trained)
        stages = Stages(
            source=source,  # type: ignore[arg-type]
            workflow=self.workflow,
            evaluation_workflow=self.evaluation_workflow,
            generator=SimulatedEngines(self.rng),
            grader=SimulatedGraders(),
            gate=gate,
            buffer=buffer,
            trainer=trainer,
            curriculum=curriculum,
        )

        def save(state: ControllerState) -> Coroutine[Any, Any, None]:
            assert state.version == trainer.version == state.buffer.version
            assert not trainer.is_busy
            return self.write(state)

        controller = Controller(
            recipe, stages, emit=self.emit, save_checkpoint=save, lost_workers=(), version=buffer.version
        )
        running = asyncio.ensure_future(controller.run())
        if ending != "end":
            await asyncio.wait({running}, timeout=self.rng.random() * 25)
            running.cancel() if ending == "kill" else controller.request_stop()
        await asyncio.wait({running}, timeout=100_000)
        assert running.done(), f"stuck: waiting for {buffer.waiting_for()}"
        if not running.cancelled():
            running.result()
            live = buffer.counts.ready + buffer.counts.running
            assert gate.started == buffer.version * recipe.batch_size + live * recipe.sampling.group_size
        return controller.version

    async def write(self, state: ControllerState) -> None:
        await asyncio.sleep(self.rng.random() * 4)
        self.saved = state

    def check_ledger(self) -> None:
        """Every prompt taken up to the checkpoint is trained on, owed, or lost by name."""
        version = self.saved.version if self.saved else 0
        self.trained = {ordinal: into for ordinal, into in self.trained.items() if into <= version}
        assert len(self.trained) == version * self.recipe.train.prompts_per_step
        if self.saved is not None:
            state = self.saved.buffer
            owed = [*(group.ordinal for group in state.ready), *state.to_restart]
            num_lost = sum(state.totals.get(fate, 0) for fate in ("failed", "filtered", "dropped", "passed_over"))
            assert len({*owed, *self.trained}) == len(owed) + len(self.trained)
            assert len(owed) + len(self.trained) + num_lost == self.saved.cursor


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


def test_problems_that_teach_nothing_are_passed_over_and_tried_again() -> None:
    world = small_world(data=banded(0.1, 0.9))
    world.verdicts = lambda prompt: [prompt.key != "3"] * 2 if prompt.key in "13" else [True, False]  # type: ignore[method-assign]
    run_in_virtual_time(world.session("end"))
    world.check_ledger()
    assert world.saved is not None
    passed_over = [e.ordinal for e in world.events if isinstance(e, GroupFinished) and e.outcome == "passed_over"]
    assert {ordinal % NUM_PROBLEMS for ordinal in passed_over} == {1, 3}
    assert len(passed_over) == world.saved.buffer.totals["passed_over"]
    visits = [ordinal for ordinal in sorted(world.trained) if ordinal % NUM_PROBLEMS == 3]
    assert visits[1] - visits[0] == 3 * NUM_PROBLEMS


def test_a_run_in_which_every_problem_is_outside_the_band_goes_on() -> None:
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


def test_evaluations_are_pinned_while_training_goes_on() -> None:
    world = small_world(eval=EvalConfig(every_steps=3))
    world.evaluation_delay = 1.5
    run_in_virtual_time(world.session("end"))
    evaluations = {event.version: event for event in world.events if isinstance(event, EvalFinished)}
    assert list(evaluations) == [0, 3, 6, 9, 12]
    assert all(e.num_failed == 0 and len(e.problems) == e.num_prompts for e in evaluations.values())
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
    with pytest.raises(RolloutError, match="returned 0 trajectories for a group of 2"):
        run_in_virtual_time(world.session("end"))


def test_an_evaluation_that_a_stop_cuts_off_is_said_to_be_missing() -> None:
    world = small_world(eval=EvalConfig(every_steps=100))
    world.evaluation_delay = 1e6
    run_in_virtual_time(world.session("stop"))
    reasons = {event.version: event.reason for event in world.events if isinstance(event, EvalSkipped)}
    assert reasons[0] == "the run was stopped before it was over"
