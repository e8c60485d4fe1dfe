"""What the two loops share: the stages of a run, its clock and its background tasks."""

import asyncio
from dataclasses import dataclass, field

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.recipe import Recipe
from freerun.data.curriculum import Curriculum
from freerun.data.mixture import PromptStream
from freerun.events.events import Listener
from freerun.processes.supervision import Supervisor
from freerun.protocols import Grader, Trainer, VersionedGenerator, Workflow


@dataclass(frozen=True)
class Stages:
    """The stages of a run, by their protocols."""

    source: PromptStream
    workflow: Workflow
    evaluation_workflow: Workflow
    generator: VersionedGenerator
    grader: Grader
    gate: StalenessGate
    buffer: TrajectoryBuffer
    trainer: Trainer
    curriculum: Curriculum = field(default_factory=Curriculum)


class RunContext:
    """One per run. The loops share the stages, and wake each other through events."""

    def __init__(self, recipe: Recipe, stages: Stages, *, emit: Listener, seconds: float) -> None:
        self.recipe = recipe
        self.stages = stages
        self.emit = emit
        self.background = Supervisor()
        self.rollouts_wake = asyncio.Event()
        """Set when a rollout might start."""
        self.training_wake = asyncio.Event()
        """Set when a batch might be ready."""
        self._loop = asyncio.get_running_loop()
        self._start_time = self._loop.time() - seconds

    @property
    def seconds(self) -> float:
        """The run's clock: time since its first start, without the gaps between sessions."""
        return self._loop.time() - self._start_time
