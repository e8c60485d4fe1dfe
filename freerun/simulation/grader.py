"""Simulated graders: processes behind the real pool that take time, or instant grades.

Every other sample is correct: if all samples of a group had equal rewards, there would be nothing to train on.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from freerun.reward import messages as m
from freerun.simulation.worker_link import SimulatedLink
from freerun.types import Completion, Grade, Prompt, Reward

_REWARDS = (Reward(1.0, True), Reward(0.0, False))


class SimulatedGrader:
    """Implements `worker_link.SimulatedWorker`: one job after another, each `grade_seconds` long."""

    def __init__(self, link: SimulatedLink, *, grade_seconds: float) -> None:
        self._link = link
        self._grade_seconds = grade_seconds
        self._loop = asyncio.get_running_loop()
        self._free = 0.0
        """When it will have finished all its jobs."""
        self.busy_seconds = 0.0

    def take(self, message: Any) -> None:
        match message:
            case m.Begin():
                self._link.tell(m.Ready())
            case m.Jobs(jobs=jobs):
                for job in jobs:
                    seconds = self._grade_seconds * len(job.completions)
                    self._free = max(self._free, self._loop.time()) + seconds
                    self.busy_seconds += seconds
                    grades = tuple(_REWARDS[job.number % 2] for _ in job.completions)
                    self._loop.call_at(self._free, self._link.tell, m.Graded(job.number, grades))

    def end(self) -> None:
        """Do nothing: timers that still fire send to a link that is closed."""


class InstantGrader:
    """Implements `protocols.Grader`, for runs whose grading time does not matter."""

    def __init__(self) -> None:
        self.num_graded = 0

    def compares(self, prompt: Prompt) -> bool:
        return False

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade:
        self.num_graded += 1
        return _REWARDS[self.num_graded % 2]

    async def grade_group(self, prompt: Prompt, completions: Sequence[Completion]) -> Sequence[Grade]:
        self.num_graded += len(completions)
        return [_REWARDS[sample % 2] for sample in range(len(completions))]
