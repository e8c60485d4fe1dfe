"""Sessions in virtual time: the real workflow, episodes and trees, played here instead of in agent workers."""

import asyncio
import itertools
import random
from pathlib import Path

from simulated_run import SimulatedEngines, World
from small_prompts import make_tokenizer

from freerun.chat.rendering import Renderer
from freerun.chat.session import ChatSession, Sample, SampleRequest, SessionLimits
from freerun.config.recipe import Recipe
from freerun.rollout.clock import SessionClock
from freerun.rollout.episode import Endpoint, Episode, Policy, Task
from freerun.rollout.episode_run import EpisodeFailed, run_episode
from freerun.rollout.sessions import GradeText, PlayedSession, SessionFailedError, SessionJob, Sessions
from freerun.rollout.tools import ToolRunner
from freerun.types import Completion, Grade, Request, Sampling


class InlineAgents:
    """Satisfies `SessionRunner`: one event loop for all, as in an agent worker."""

    def __init__(self, episode: Episode, recipe: Recipe, model: Path) -> None:
        self.num_running = 0
        self.most_running = 0
        self._episode = episode
        self._recipe = recipe
        self._renderer = Renderer(make_tokenizer(model), use_chat_template=False)
        self._limits = SessionLimits(max_turns=64, max_session_tokens=100_000, max_completion_tokens=8)

    async def run(self, job: SessionJob, *, sample: Sample, grade: GradeText) -> PlayedSession:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        try:
            return await self._play(job, sample, grade)
        finally:
            self.num_running -= 1

    async def _play(self, job: SessionJob, sample: Sample, grade: GradeText) -> PlayedSession:
        clock = SessionClock(self._recipe.rollout.session_seconds)

        async def sample_beside_the_clock(request: SampleRequest) -> tuple[Completion, ...]:
            with clock.stopped():
                return await sample(request)

        async def grade_beside_the_clock(text: str) -> Grade:
            with clock.stopped():
                return await grade(text)

        policy = Policy(
            session=ChatSession(self._renderer, sample_beside_the_clock, self._limits),
            name="policy",
            endpoint=lambda: Endpoint("", ""),
            system="",
            tools=ToolRunner(seconds=self._recipe.rollout.tool_seconds),
        )
        task = Task(
            text=job.text,
            key=job.key,
            ordinal=job.ordinal,
            sample=job.sample,
            is_evaluation=job.is_evaluation,
            grader=grade_beside_the_clock,
        )
        outcome = await run_episode(self._episode, task, policy, clock)
        if isinstance(outcome, EpisodeFailed):
            raise SessionFailedError(outcome.reason)
        return PlayedSession(sequences=outcome.sequences, reward=outcome.reward, is_truncated=outcome.is_truncated)


class SlottedEngines(SimulatedEngines):
    """Engines that decode `num_slots` samples at once, each call in about a second."""

    def __init__(self, rng: random.Random, *, num_slots: int) -> None:
        super().__init__(rng, tail=1.0)
        self.num_slots = num_slots
        self._slots = asyncio.Semaphore(num_slots)

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        async with self._slots:
            return await super().generate(request)

    def share_busy(self, begin: float, end: float) -> float:
        """Of the time of all slots."""
        moments = [(seconds, number) for seconds, number in self.decoding if begin <= seconds <= end]
        used = sum(number * (after - seconds) for (seconds, number), (after, _) in itertools.pairwise(moments))
        return used / (self.num_slots * (moments[-1][0] - moments[0][0]))


class AgentWorld(World):
    """A simulated run whose prompts are played by episodes."""

    engines: SlottedEngines

    def make_engines(self) -> SlottedEngines:
        return SlottedEngines(self.rng, num_slots=self.recipe.engine.num_slots)

    def play(self, episode: Episode, model: Path) -> InlineAgents:
        """Use this episode for training and for evaluations."""
        agents, numbers = InlineAgents(episode, self.recipe, model), itertools.count()
        training, evaluation = (
            Sessions(
                agents,
                Sampling(max_completion_tokens=8),
                num_samples=num_samples,
                is_evaluation=is_evaluation,
                request_ids=self.request_ids,
                numbers=numbers,
            )
            for num_samples, is_evaluation in ((self.recipe.sampling.group_size, False), (2, True))
        )
        self.workflow, self.evaluation_workflow = training, evaluation  # type: ignore[method-assign]
        return agents
