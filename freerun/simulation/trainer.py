"""A simulated trainer: answers the messages of `workers/messages.py` after the time given by its cost model.

Commands run one after another, as in the real trainer. Publishing blocks it for one copy; the transfer and a
checkpoint run beside the next step.
"""

import asyncio
from collections import Counter, deque
from typing import Any

from freerun.simulation.costs import TrainerCosts, WeightCosts
from freerun.simulation.worker_link import SimulatedLink
from freerun.types import Group, Publication, StepResult
from freerun.workers import messages as m


class SimulatedTrainer:
    """Implements `worker_link.SimulatedWorker`."""

    def __init__(self, link: SimulatedLink, costs: TrainerCosts, weights: WeightCosts) -> None:
        self._link = link
        self._costs = costs
        self._weights = weights
        self._loop = asyncio.get_running_loop()
        self._commands: deque[Any] = deque()
        self._parts: list[Group] = []
        self._version = 0
        self._is_busy = False
        self._has_ended = False

    def take(self, message: Any) -> None:
        self._commands.append(message)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._next)

    def end(self) -> None:
        self._has_ended = True

    def _next(self) -> None:
        if self._has_ended:
            return
        self._is_busy = bool(self._commands)
        if self._commands:
            self._loop.call_later(self._do(self._commands.popleft()), self._next)

    def _do(self, command: Any) -> float:
        """Begin a command; returns how long the trainer is busy with it."""
        match command:
            case m.StartTrainer(version=version):
                self._version = version
                self._link.tell(m.TrainerReady(num_parameters=0, num_trained=0))
            case m.BatchPart(groups=groups):
                self._parts += groups
            case m.TrainStep(groups=groups):
                batch, self._parts = [*self._parts, *groups], []
                return self._train(batch)
            case m.Publish():
                published = m.Published(published=Publication(version=self._version, checksum=""))
                after = self._weights.hold_seconds + self._weights.transfer_seconds
                self._loop.call_later(after, self._link.tell, published)
                return self._weights.hold_seconds
            case m.Save(directory=directory):
                self._link.tell(m.Saved(directory=directory, error=""))
        return 0.0

    def _train(self, batch: list[Group]) -> float:
        trajectories = [trajectory for group in batch for trajectory in group.trajectories]
        sampled = [len(trajectory.completion.token_ids) for trajectory in trajectories]
        prompts = [len(trajectory.prompt.token_ids) for trajectory in trajectories]
        seconds = self._costs.step_seconds([sum(pair) for pair in zip(sampled, prompts, strict=True)])
        staleness = Counter(self._version - t.completion.oldest_version for t in trajectories)
        self._version += 1
        result = StepResult(
            version=self._version,
            metrics={
                "num_tokens": float(sum(sampled)),
                "num_prompt_tokens": float(sum(prompts)),
                "completion_length": sum(sampled) / len(sampled),
            },
            staleness_counts=dict(sorted(staleness.items())),
            phases=(("publishing", self._weights.hold_seconds), ("training", seconds)),
        )
        self._loop.call_later(seconds, self._link.tell, m.StepDone(result=result))
        return seconds
