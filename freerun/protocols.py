"""The seams: what each stage promises the controller, so that heavy backends can stand in for ours."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from freerun.types import (
    Completion,
    EngineStats,
    Grade,
    Group,
    Prompt,
    Publication,
    Request,
    StepResult,
    Trajectory,
)


class Generator(Protocol):
    """Samples completions: all that a workflow sees of the engines."""

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        """All samples of the request, in order of their index."""
        ...


class PinnedGenerator(Generator, Protocol):
    """Samples every token under one version, until it is released."""

    def release(self) -> None:
        """Let go of the version; what is still being sampled under it is given up."""
        ...


class VersionedGenerator(Generator, Protocol):
    """Swaps in new weights without losing any completion that is under way."""

    async def load(self, published: Publication) -> None:
        """Return when every engine has confirmed that it generates with these weights."""
        ...

    def pin(self, version: int) -> PinnedGenerator:
        """Keep the version that `load` has just brought, beside those to come; one at a time."""
        ...

    @property
    def num_ready(self) -> int:
        """Engines that can generate now: fewer than the recipe's while one is replaced or waits for a place."""
        ...

    def missing(self) -> str:
        """What none of the engines can generate without, for people; empty if nothing is missing."""
        ...

    def stats(self) -> Sequence[EngineStats]: ...


class Grader(Protocol):
    """Judges completions, overlapping with generation; a failure is data."""

    num_graded: int
    """Grades given so far, failures included: while it rises, nothing is stuck."""

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade: ...


class Trainer(Protocol):
    """Consumes batches; each consumed batch is one new version."""

    async def step(self, groups: Sequence[Group]) -> StepResult: ...

    def publish(self) -> Awaitable[Publication]:
        """Make the current version available to generators: fixed by the call, there when awaited.

        Holds the trainer for one memory copy.
        """
        ...

    def save(self, directory: str, *, version: int) -> Awaitable[None]:
        """Write model and optimizer of the current version: captured by the call, on disk when awaited."""
        ...


class Workflow(Protocol):
    """Turns a prompt into the trajectories of one group, or says why it could not."""

    async def __call__(self, prompt: Prompt, generator: Generator, grader: Grader) -> tuple[Trajectory, ...]: ...
