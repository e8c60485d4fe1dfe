"""The protocols between the controller and the stages. All backends implement them."""

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
    """Samples completions: the only view of the engines that a workflow has."""

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        """All samples of the request, in the order of their index."""
        ...

    def end_session(self, session: int) -> None:
        """The session has no further requests: drop what is kept for it."""
        ...


class PinnedGenerator(Generator, Protocol):
    """Samples every token under one version, until released."""

    def release(self) -> None:
        """Release the version and abort requests pinned to it."""
        ...


class VersionedGenerator(Generator, Protocol):
    """Swaps in new weights without losing running completions."""

    async def load(self, published: Publication) -> None:
        """Return when every engine has confirmed that it uses these weights."""
        ...

    def pin(self, version: int) -> PinnedGenerator:
        """Keep the version just loaded, alongside later ones; one pin at a time."""
        ...

    @property
    def num_ready(self) -> int:
        """Engines that can generate now; fewer than configured while one is replaced or waits for a node."""
        ...

    @property
    def num_leaving(self) -> int:
        """Samples in retiring engines, which need no slots of the others."""
        ...

    def missing(self) -> str:
        """What keeps all engines from generating, as text for people; empty if nothing does."""
        ...

    def stats(self) -> Sequence[EngineStats]: ...

    def served_by(self, request_id: int) -> str:
        """The worker that answered this request; empty if the request was answered too long ago."""
        ...


class Grader(Protocol):
    """Grades completions while generation continues; a failure is returned as data."""

    num_graded: int
    """Number of grades so far, including failures; its growth shows progress."""

    def compares(self, prompt: Prompt) -> bool:
        """Whether the completions of this prompt must be graded together, by `grade_group` instead of `grade`."""
        ...

    async def grade(self, prompt: Prompt, completion: Completion) -> Grade: ...

    async def grade_group(self, prompt: Prompt, completions: Sequence[Completion]) -> Sequence[Grade]:
        """One grade per completion of the prompt, in order; some graders compare the completions."""
        ...


class Trainer(Protocol):
    """Consumes batches; each consumed batch is one new version."""

    async def step(self, groups: Sequence[Group]) -> StepResult: ...

    def publish(self) -> Awaitable[Publication]:
        """Make the current version available to generators: captured by the call, available when awaited.

        Blocks the trainer for one memory copy.
        """
        ...

    def save(self, directory: str, *, version: int) -> Awaitable[None]:
        """Write model and optimizer of the current version: captured by the call, on disk when awaited."""
        ...


class Workflow(Protocol):
    """Turns a prompt into the trajectories of one group, or raises."""

    async def __call__(self, prompt: Prompt, generator: Generator, grader: Grader) -> tuple[Trajectory, ...]: ...
