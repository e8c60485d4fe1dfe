"""Running groups: each is a background task that turns one prompt into a group in the buffer.

    workflow (generate, grade) ─► buffer: buffered, filtered, dropped, requeued
          └─ raises ─► failed

A failed group is counted and its capacity is returned to the gate. The loops decide when which prompt starts
(`rollout_loop.py`, `live_rollouts.py`).
"""

import asyncio
from typing import Any, Protocol

from freerun.controller.group_check import check_group
from freerun.controller.group_life import GroupLife
from freerun.controller.setbacks import Setbacks
from freerun.controller.stages import RunContext
from freerun.errors import SessionUnratedError
from freerun.events.events import GroupFinished, RecentCompletion, excerpt_of
from freerun.types import GivenUp, Group, GroupOutcome, Prompt

EXCERPT_SECONDS = 1.0


class Places(Protocol):
    """How a group takes and leaves its place in the gate."""

    def enter(self) -> bool:
        """Called when a group has finished; returns whether it has a place in the gate."""
        ...

    def leave(self) -> None:
        """Called when a group is given up."""


class RunningGroups:
    """The groups that have started and not finished."""

    def __init__(self, run: RunContext, places: Places) -> None:
        recipe = run.recipe
        self._run = run
        self._places = places
        self._group_size = recipe.sampling.group_size
        self._groups: set[asyncio.Task[None]] = set()
        self._next_excerpt = 0.0
        """When the next completion may be shown."""
        self._setbacks = Setbacks(
            max_failures=recipe.reward.max_failures_in_row, groups_per_batch=recipe.train.prompts_per_step
        )

    def start(self, prompt: Prompt) -> None:
        """Start the group of a prompt that the buffer counts as running."""
        group = self._run.background.start(self._run_group(prompt, self._run.stages.gate.version))
        self._groups.add(group)
        group.add_done_callback(self._groups.discard)

    async def stop(self, loop: asyncio.Task[None]) -> None:
        """Abort the loop and all groups. The buffer still counts the groups as running: a resume restarts them."""
        tasks = [loop, *self._groups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def give_up(self, ordinal: int, outcome: GivenUp, reason: str, **facts: Any) -> None:
        """End a group without a result."""
        self._run.stages.buffer.fail(ordinal, outcome=outcome)
        self._places.leave()
        self.tell(ordinal, outcome, reason=reason, **facts)

    def tell(self, ordinal: int, outcome: GroupOutcome, **facts: Any) -> None:
        """Emit the event that says how a group ended."""
        self._run.emit(GroupFinished(seconds=self._run.seconds, ordinal=ordinal, outcome=outcome, **facts))

    async def _run_group(self, prompt: Prompt, start_version: int) -> None:
        """Turn one prompt into one group in the buffer; an exception in the workflow counts as a failed group."""
        run, stages = self._run, self._run.stages
        life = GroupLife(stages.generator, lambda: run.seconds)
        try:
            with run.slots.of_group() as generator:
                trajectories = await stages.workflow(prompt, life.through(generator), stages.grader)
            life.note_graded()
            group = Group(ordinal=prompt.ordinal, start_version=start_version, trajectories=trajectories)
            check_group(group, group_size=self._group_size)
        except SessionUnratedError as error:
            self.give_up(prompt.ordinal, "unrated", str(error))
        except Exception as error:  # noqa: BLE001 - the edge of user code: a failure is data
            self._fail(prompt, life, error)
        else:
            if self._places.enter():
                self._finish(prompt, group, life)
            else:
                reason = "it was rated while enough others waited for the trainer"
                self.give_up(prompt.ordinal, "dropped", reason, prompt=prompt, lost=group.trajectories)
        run.rollouts_wake.set()
        run.training_wake.set()

    def _finish(self, prompt: Prompt, group: Group, life: GroupLife) -> None:
        stages, rewards = self._run.stages, group.rewards
        stages.curriculum.note(prompt.key, sum(reward.is_correct for reward in rewards) / len(rewards))
        outcome = stages.buffer.add(group)
        lost: dict[str, Any] = {}
        if outcome != "buffered":
            stages.gate.give_back(self._group_size)
            lost = {"prompt": prompt, "lost": group.trajectories}
        elif (seconds := life.grade_seconds) is not None:
            self._run.grade_seconds[group.ordinal] = seconds
        self.tell(
            group.ordinal,
            outcome,
            num_tokens=sum(trajectory.completion.num_sampled for trajectory in group.trajectories),
            mean_reward=sum(reward.value for reward in rewards) / len(rewards),
            excerpt=self._excerpt(group),
            **life.facts,
            **lost,
        )
        self._setbacks.note_finished(is_filtered=outcome == "filtered")

    def _excerpt(self, group: Group) -> RecentCompletion | None:
        """A completion to show, at most one per second because the store keeps it with the event."""
        now = self._run.seconds
        if now < self._next_excerpt:
            return None
        self._next_excerpt = now + EXCERPT_SECONDS
        samples = group.samples
        return excerpt_of(samples[group.ordinal % len(samples)].parts[0])

    def _fail(self, prompt: Prompt, life: GroupLife, error: Exception) -> None:
        left_behind = life.left_behind(prompt)
        num_tokens = sum(trajectory.completion.num_sampled for trajectory in left_behind)
        facts = life.facts | {"num_tokens": num_tokens, "prompt": prompt, "lost": left_behind}
        self.give_up(prompt.ordinal, "failed", str(error), **facts)
        self._setbacks.note_failure(prompt.key, error)
