"""A run with simulated workers: the real controller, gate and buffer over sessions that end, stop or die."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.data import DataConfig
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import ControllerState
from freerun.controller.controller import Controller
from freerun.controller.stages import Stages
from freerun.data.curriculum import Curriculum
from freerun.errors import RolloutError
from freerun.events.events import AnyEvent
from freerun.types import (
    Completion,
    EngineStats,
    Grade,
    Group,
    Prompt,
    Publication,
    Request,
    Reward,
    Sampling,
    Span,
    StepResult,
    Trajectory,
)

NUM_PROMPTS = 7
TIMES_TABLES = DataConfig(task="times-tables")


class CountingSource:
    """Prompts that are nothing but their ordinal; a few prompts come again and again."""

    fingerprint = "same data"

    def __init__(self) -> None:
        self.cursor = 0

    def at(self, ordinal: int) -> Prompt:
        ids = np.array([1], dtype=np.int32)
        return Prompt(ordinal=ordinal, key=str(ordinal % NUM_PROMPTS), text="", answer="", token_ids=ids)

    def take(self) -> Prompt:
        self.cursor += 1
        return self.at(self.cursor - 1)

    def held_out(self, limit: int) -> list[Prompt]:
        return [self.at(-1 - i) for i in range(2)]


class SimulatedEngines:
    """Loads take a while, and some tokens are sampled before and some after."""

    def __init__(self, rng: random.Random, *, tail: float) -> None:
        self.version = -1
        self.rng = rng
        self.tail = tail
        self.pinned: Pinned | None = None
        self.decoding: list[tuple[float, int]] = []
        """How many requests were being decoded, from each moment on."""

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        self._note(+1)
        try:
            return await self.sample(request, self)
        finally:
            self._note(-1)

    async def sample(self, request: Request, weights: "SimulatedEngines | Pinned") -> tuple[Completion, ...]:
        """A few tokens under whatever version the weights then are of; one in ten takes long."""
        versions = []
        for _ in range(self.rng.randint(1, 3)):
            versions.append(weights.version)
            await asyncio.sleep(self.rng.random() * (self.tail if self.rng.random() < 0.1 else 1))
        completion = Completion(
            token_ids=np.zeros(len(versions), np.int32),
            logprobs=np.zeros(len(versions), np.float32),
            spans=tuple(Span(version, 1) for version in versions),
            finish_reason="stop",
            text="",
        )
        return (completion,) * request.num_samples

    def _note(self, change: int) -> None:
        before = self.decoding[-1][1] if self.decoding else 0
        self.decoding.append((asyncio.get_running_loop().time(), before + change))

    def end_session(self, session: int) -> None: ...

    async def load(self, published: Publication) -> None:
        await asyncio.sleep(self.rng.random() * 0.5)
        self.version = published.version
        await asyncio.sleep(self.rng.random())

    def pin(self, version: int) -> "Pinned":
        assert version == self.version, "pinned behind another load"
        assert self.pinned is None, "two versions pinned at once"
        self.pinned = Pinned(self, version)
        return self.pinned

    num_leaving = 0

    @property
    def num_ready(self) -> int:
        return 1

    def missing(self) -> str:
        return ""

    def stats(self) -> Sequence[EngineStats]:
        return []

    def served_by(self, request_id: int) -> str:
        return "rollout-0"


@dataclass
class Pinned:
    """The engines at one version."""

    engines: SimulatedEngines
    version: int

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        return await self.engines.sample(request, self)

    def end_session(self, session: int) -> None: ...

    def release(self) -> None:
        self.engines.pinned = None


class SimulatedGraders:
    num_graded = 0

    def compares(self, prompt: Prompt) -> bool:
        return False

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        raise NotImplementedError("the simulated workflow grades by itself")

    async def grade_group(self, prompt: Prompt, completions: Sequence[Completion]) -> Sequence[Grade]:
        raise NotImplementedError("the simulated workflow grades by itself")


@dataclass
class SimulatedTrainer:
    """Checks on every step what the whole system promises."""

    rng: random.Random
    version: int
    max_staleness: int
    trained: dict[int, int]
    """Version that each ordinal was trained into."""
    step_seconds: tuple[float, float] = (0.0, 2.0)
    """From, to."""
    is_busy: bool = False
    published: list[int] = field(default_factory=list)

    async def step(self, groups: Sequence[Group]) -> StepResult:
        assert not self.is_busy
        self.is_busy = True
        for group in groups:
            assert group.ordinal not in self.trained, "trained on twice"
            assert 0 <= self.version - group.oldest_version <= self.max_staleness
        await asyncio.sleep(self.rng.uniform(*self.step_seconds))
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
        self.grading_seconds = 0.0
        self.step_seconds = (0.0, 2.0)
        self.max_seconds = 25.0
        """Until a session is stopped or killed."""
        self.request_ids = itertools.count()
        self.grader: Any = SimulatedGraders()
        self.trained: dict[int, int] = {}
        self.saved: ControllerState | None = None
        self.events: list[AnyEvent] = []

    def emit(self, event: AnyEvent) -> None:
        self.events.append(event)

    def make_engines(self) -> SimulatedEngines:
        return SimulatedEngines(self.rng, tail=self.tail)

    async def workflow(self, prompt: Prompt, generator: Any, grader: Any) -> tuple[Trajectory, ...]:
        completions = await generator.generate(
            Request(
                request_id=next(self.request_ids),
                ordinal=prompt.ordinal,
                prompt_token_ids=prompt.token_ids,
                num_samples=self.recipe.sampling.group_size,
                sampling=Sampling(max_completion_tokens=3),
            )
        )
        await asyncio.sleep(self.grading_seconds)
        if self.rng.random() < self.failure_rate:
            raise RolloutError("as the dice fell")
        rewards = [Reward(float(is_correct), is_correct) for is_correct in self.verdicts(prompt)]
        return tuple(
            Trajectory(prompt=prompt, sample=i, completion=completion, reward=reward)
            for i, (completion, reward) in enumerate(zip(completions, rewards, strict=False))
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
            ahead=self.saved.ahead if self.saved else None,
        )
        curriculum = Curriculum(
            min_pass_rate=recipe.data.min_pass_rate,
            max_pass_rate=recipe.data.max_pass_rate,
            resting=self.saved.resting if self.saved else {},
        )
        trainer = SimulatedTrainer(
            self.rng, buffer.version, recipe.buffer.max_staleness, self.trained, self.step_seconds
        )
        self.engines = engines = self.make_engines()
        stages = Stages(
            source=source,  # type: ignore[arg-type]
            workflow=self.workflow,
            evaluation_workflow=self.evaluation_workflow,
            generator=engines,
            grader=self.grader,
            gate=gate,
            buffer=buffer,
            trainer=trainer,
            curriculum=curriculum,
        )

        def save(state: ControllerState) -> Coroutine[Any, Any, None]:
            assert state.version == trainer.version == state.buffer.version
            assert not trainer.is_busy
            return self.write(state)

        self.controller = controller = Controller(
            recipe, stages, emit=self.emit, save_checkpoint=save, lost_workers=(), version=buffer.version
        )
        running = asyncio.ensure_future(controller.run())
        if ending != "end":
            await asyncio.wait({running}, timeout=self.rng.random() * self.max_seconds)
            running.cancel() if ending == "kill" else controller.request_stop()
        await asyncio.wait({running}, timeout=100_000)
        self.ended = asyncio.get_running_loop().time()
        assert running.done(), f"stuck: waiting for {buffer.waiting_for()}"
        if not running.cancelled():
            running.result()
            live = buffer.counts.ready + (0 if recipe.online.is_on else buffer.counts.running)
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
            num_lost = sum(
                state.totals.get(fate, 0) for fate in ("failed", "filtered", "dropped", "passed_over", "unrated")
            )
            assert len({*owed, *self.trained}) == len(owed) + len(self.trained)
            assert len(owed) + len(self.trained) + num_lost == self.saved.cursor
