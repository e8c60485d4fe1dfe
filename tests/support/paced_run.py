"""A simulated run with engines and a trainer of known speed: how stale its samples are, and how long it takes."""

import asyncio
import random
import statistics

import numpy as np
from simulated_run import SimulatedEngines, SimulatedGraders, World

from freerun.config.engine import EngineConfig
from freerun.config.recipe import BufferConfig, CheckpointConfig, EvalConfig, Recipe, RuntimeConfig, SamplingConfig
from freerun.config.train import TrainConfig
from freerun.events.events import StepFinished
from freerun.rollout.single_turn import SingleTurn
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import Completion, Grade, Prompt, Publication, Request, Reward, Sampling, Span


class PacedEngines(SimulatedEngines):
    """One engine with slots: a sample waits for one, then takes as long as the dice say."""

    def __init__(self, rng: random.Random, *, num_slots: int, median_seconds: float, spread: float) -> None:
        super().__init__(rng, tail=1.0)
        self.slots = asyncio.Semaphore(num_slots)
        self.median_seconds = median_seconds
        self.spread = spread
        """0: all samples take the same time."""
        self.slowdown = 1.0

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        return tuple(await asyncio.gather(*(self.decode() for _ in range(request.num_samples))))

    async def decode(self) -> Completion:
        async with self.slots:
            self._note(+1)
            first = self.version
            seconds = self.median_seconds * self.rng.lognormvariate(0.0, self.spread)
            await asyncio.sleep(self.slowdown * seconds)
            self._note(-1)
            versions = sorted({first, self.version})
        return Completion(
            token_ids=np.zeros(len(versions), np.int32),
            logprobs=np.zeros(len(versions), np.float32),
            spans=tuple(Span(version, 1) for version in versions),
            finish_reason="stop",
            text="",
        )

    async def load(self, published: Publication) -> None:
        await asyncio.sleep(0.1)
        self.version = published.version


class CoinGraders(SimulatedGraders):
    """Every other completion is correct."""

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        self.num_graded += 1
        return Reward(float(self.num_graded % 2), bool(self.num_graded % 2))


class PacedWorld(World):
    """Steps of ten seconds, give or take one; `median_seconds` of a sample decide who is faster."""

    def __init__(
        self,
        *,
        median_seconds: float,
        keep_fresh: bool,
        spread: float = 0.5,
        num_slots: int = 128,
        max_staleness: int = 4,
        num_steps: int = 120,
        seed: int = 0,
    ) -> None:
        recipe = Recipe(
            sampling=SamplingConfig(group_size=4),
            engine=EngineConfig(num_slots=num_slots),
            buffer=BufferConfig(max_staleness=max_staleness, keep_fresh=keep_fresh),
            train=TrainConfig(num_steps=num_steps, prompts_per_step=8, num_minibatches=1),
            eval=EvalConfig(num_prompts=0),
            checkpoint=CheckpointConfig(every_steps=1000),
            runtime=RuntimeConfig(stall_seconds=2000.0),
        )
        super().__init__(recipe, random.Random(seed), failure_rate=0.0, tail=1.0)
        self.step_seconds = (9.0, 11.0)
        self.median_seconds = median_seconds
        self.spread = spread
        self.grader = CoinGraders()
        self.workflow = SingleTurn(  # type: ignore[method-assign]
            Sampling(max_completion_tokens=3), num_samples=4, request_ids=self.request_ids
        )

    def make_engines(self) -> PacedEngines:
        return PacedEngines(
            self.rng,
            num_slots=self.recipe.engine.num_slots,
            median_seconds=self.median_seconds,
            spread=self.spread,
        )

    def play(self) -> "PacedWorld":
        """To the end."""
        assert run_in_virtual_time(self.session("end")) == self.recipe.train.num_steps
        self.check_ledger()
        return self

    @property
    def steps(self) -> list[StepFinished]:
        return [event for event in self.events if isinstance(event, StepFinished)]

    @property
    def ahead(self) -> list[float]:
        """In batches."""
        return [step.result.metrics["batches_ahead"] for step in self.steps]

    @property
    def waited_share(self) -> float:
        """Of the trainer's time after its first ten steps."""
        steps = self.steps[10:]
        waited = sum(step.wait_seconds for step in steps)
        return waited / (waited + sum(step.step_seconds for step in steps))

    @property
    def trained_share(self) -> float:
        """Of the time from the end of the first step to that of the last. Steps are equally long in all runs."""
        steps = self.steps
        return sum(step.step_seconds for step in steps[1:]) / (steps[-1].seconds - steps[0].seconds)

    @property
    def mean_staleness(self) -> float:
        return statistics.mean(
            step.result.version - 1 - trajectory.completion.oldest_version
            for step in self.steps
            for group in step.groups
            for trajectory in group.trajectories
        )
