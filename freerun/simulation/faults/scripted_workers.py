"""The trainer and the graders of a scenario: real messages but no computation; the dice determine durations."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from freerun.reward import messages as grading
from freerun.simulation.faults import durations as d
from freerun.simulation.worker_link import SimulatedLink
from freerun.types import Grade, GradeFailed, Group, Publication, Reward, StepResult
from freerun.workers import messages as m

if TYPE_CHECKING:
    from freerun.simulation.faults.world import FaultWorld


class ScriptedTrainer:
    """One rank; implements `SimulatedWorker`. Commands run in order; files are written beside the next one."""

    def __init__(self, link: SimulatedLink, world: FaultWorld) -> None:
        self.link = link
        self.is_stuck = False
        self.slowness = 0.0
        self.version = 0
        self._world = world
        self._dice = world.dice
        self._loop = asyncio.get_running_loop()
        self._commands: deque[m.ToTrainer] = deque()
        self._parts: list[Group] = []
        self._is_busy = False
        self._answers = True
        """Whether it answers: only rank 0 does."""

    def take(self, message: m.ToTrainer) -> None:
        self._commands.append(message)
        self._next()

    def end(self) -> None:
        self.is_stuck = True

    def _next(self) -> None:
        while self._commands and not self._is_busy and not self.is_stuck:
            self._handle(self._commands.popleft())

    def _handle(self, message: m.ToTrainer) -> None:
        match message:
            case m.StartTrainer():
                self._start(message)
            case m.BatchPart(groups=groups):
                self._parts += groups
            case m.TrainStep(groups=groups) if self._answers:
                self._train((*self._parts, *groups))
                self._parts = []
            case m.Publish() if self._answers:
                self._world.properties.tell("published", self.version, self._world.engines())
                published = Publication(version=self.version, checksum=f"version {self.version}")
                self._tell_later(d.PUBLISH, m.Published(published=published), "publish")
            case m.Save() if self._answers:
                self._world.properties.tell("saved", message.version, self.version)
                error = "no space left on device" if self._world.is_disk_full("the trainer's files") else ""
                self._tell_later(d.SAVE, m.Saved(directory=message.directory, error=error), "save")

    def _start(self, message: m.StartTrainer) -> None:
        self.version = message.version
        self._answers = message.rank == 0
        if self._answers and message.train.num_ranks > 1:
            self.link.tell(m.Rendezvous(address="simulated"))
        if self._answers:
            self._work(d.TRAINER_START, lambda: self.link.tell(m.TrainerReady(num_parameters=1, num_trained=1)))

    def _train(self, groups: tuple[Group, ...]) -> None:
        self._world.properties.tell("batch", self.version, groups)

        def finish() -> None:
            self.version += 1
            self._world.properties.tell("trained", self.version, groups)
            result = StepResult(version=self.version, metrics={}, staleness_counts={})
            self.link.tell(m.StepDone(result=result))

        longest = d.TRAIN + d.SLOW_TRAIN * self.slowness
        self._work(longest * self._dice.share("train", self.version), finish)

    def _work(self, seconds: float, finish: Callable[[], None]) -> None:
        """Do nothing else until this is finished."""

        def end() -> None:
            if not self.is_stuck:
                self._is_busy = False
                finish()
                self._next()

        self._is_busy = True
        self._loop.call_later(seconds, end)

    def _tell_later(self, seconds: float, answer: m.FromTrainer, what: str) -> None:
        def tell() -> None:
            if not self.is_stuck:
                self.link.tell(answer)

        self._loop.call_later(seconds * self._dice.share(what, self.version), tell)


class ScriptedGrader:
    """Implements `SimulatedWorker`: one job after another. Equal completions always get equal grades."""

    def __init__(self, link: SimulatedLink, world: FaultWorld) -> None:
        self.link = link
        self.is_stuck = False
        self.failure_rate = world.scenario.failure_rate
        """Share of groups whose grading fails."""
        self.sends_wrong_number = False
        self._group_size = world.recipe.sampling.group_size
        self._dice = world.dice
        self._loop = asyncio.get_running_loop()
        self._free = 0.0
        """When it will have finished all jobs."""

    def take(self, message: grading.ToWorker) -> None:
        if isinstance(message, grading.Begin):
            self._loop.call_later(d.GRADER_START, self._tell, grading.Ready())
        else:
            for job in message.jobs:
                self._begin(job)

    def end(self) -> None:
        self.is_stuck = True

    def _begin(self, job: grading.Job) -> None:
        text = job.completions[0]
        self._free = max(self._free, self._loop.time()) + d.GRADE * self._dice.share("grading", text)
        number, self.sends_wrong_number = job.number - self.sends_wrong_number, False
        self._loop.call_at(self._free, self._tell, grading.Graded(number, (self._grade(text),)))

    def _tell(self, message: Any) -> None:
        if not self.is_stuck:
            self.link.tell(message)

    def _grade(self, text: str) -> Grade:
        ordinal, sample = map(int, text.split())
        if self._dice.share("failure", text) < self.failure_rate / self._group_size:
            return GradeFailed("the dice say so")
        # Three groups in four have different rewards: dynamic sampling must always find something to train on.
        first = self._dice.share("verdict", ordinal, 0) < 0.5
        is_told_apart = self._dice.share("apart", ordinal) < 0.75
        is_correct = first if sample == 0 or not is_told_apart else (first + sample) % 2 == 1
        return Reward(float(is_correct), is_correct)
