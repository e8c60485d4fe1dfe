"""What the two loops share: the stages of a run, its clock, its slots and its background tasks."""

import asyncio
from dataclasses import dataclass, field

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.recipe import Recipe
from freerun.controller.freshness import FreshnessControl
from freerun.controller.queues import QueueWatch
from freerun.controller.slots import Slots
from freerun.data.curriculum import Curriculum
from freerun.data.live_prompts import LivePrompts
from freerun.data.mixture import PromptStream
from freerun.events.events import Listener
from freerun.processes.supervision import Supervisor
from freerun.protocols import Grader, Trainer, VersionedGenerator, Workflow


@dataclass(frozen=True)
class Stages:
    """The stages of a run, typed by their protocols."""

    source: PromptStream | LivePrompts
    workflow: Workflow
    evaluation_workflow: Workflow
    generator: VersionedGenerator
    grader: Grader
    gate: StalenessGate
    buffer: TrajectoryBuffer
    trainer: Trainer
    curriculum: Curriculum = field(default_factory=Curriculum)


class RunContext:
    """The state shared by the loops of one run; they wake each other through its events."""

    def __init__(self, recipe: Recipe, stages: Stages, *, emit: Listener, seconds: float) -> None:
        self.recipe = recipe
        self.stages = stages
        self.emit = emit
        self.background = Supervisor()
        self.rollouts_wake = asyncio.Event()
        """Set when a rollout may be able to start."""
        self.training_wake = asyncio.Event()
        """Set when a batch may be ready."""
        self._loop = asyncio.get_running_loop()
        self._start_time = self._loop.time() - seconds
        self.queues = QueueWatch(
            stages.gate,
            stages.buffer,
            group_size=recipe.sampling.group_size,
            emit=emit,
            clock=lambda: self.seconds,
        )
        self.slots = Slots(
            stages.generator,
            num_slots=recipe.engine.num_slots,
            group_size=recipe.sampling.group_size,
            max_sessions=recipe.rollout.max_sessions,
            on_free=self._wake_if_room,
            clock=lambda: self.seconds,
        )
        self.freshness = FreshnessControl(
            stages.gate,
            stages.buffer,
            groups_per_batch=recipe.train.prompts_per_step,
            group_size=recipe.sampling.group_size,
            is_on=recipe.keeps_fresh,
            clock=lambda: self.seconds,
        )
        self.grade_seconds: dict[int, float] = {}
        """Grading time of each group in the buffer, by ordinal."""

    def _wake_if_room(self) -> None:
        """A slot is free: most often the gate is shut, or there is no room for a group yet."""
        stages = self.stages
        if (
            stages.gate.capacity >= self.recipe.sampling.group_size
            and self.slots.num_free(stages.buffer.num_running) > 0
        ):
            self.rollouts_wake.set()

    @property
    def seconds(self) -> float:
        """The run's clock: time since its first start, without the gaps between sessions."""
        return self._loop.time() - self._start_time
