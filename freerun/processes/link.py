"""The seam between the controller and its workers: a link to one of them, and what launches them.

A worker is a module whose `__main__` serves typed messages (`parent.py`). Who gives it a process decides only
where it runs: this machine (`local.py`), or a node of a Ray cluster (`freerun.backends.ray.cluster`). The worker
cannot tell, and neither can the pools that talk to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

M_co = TypeVar("M_co", covariant=True)
Role = Literal["rollout", "trainer", "grader"]


@dataclass(frozen=True)
class WorkerJob:
    """A worker to be started."""

    name: str
    """For people and for its log; unique among the workers of a run."""
    role: Role
    module: str
    """Run as `python -m module`."""
    has_weights: bool = False
    """Whether it gets the buffers through which weights are published and loaded."""


class Link(Protocol[M_co]):
    """One worker and the typed messages to and from it."""

    name: str

    @property
    def is_alive(self) -> bool: ...

    @property
    def is_placed(self) -> bool:
        """Whether it has a machine to run on; until then it is not expected to say anything."""
        ...

    @property
    def was_taken_away(self) -> bool:
        """Whether its machine was lost or somebody killed it, rather than that it ended by itself.

        Then a successor may do better, even if it was not ready yet. Known once it has ended.
        """
        ...

    @property
    def seconds_silent(self) -> float:
        """Time since it last said anything (`patience.py`); a healthy worker says once a second that it is alive.

        Only meaningful while somebody is in `receive`.
        """
        ...

    def send(self, message: Any) -> None:
        """Queue a message; never waits. A dead worker swallows it: `receive` tells of the death."""
        ...

    async def receive(self) -> M_co | None:
        """The worker's next message, or None when it is gone; cancelling it loses no message."""
        ...

    def kill(self) -> None:
        """End the worker and all that it started, at once; a no-op when it has ended."""
        ...

    async def wait(self, timeout_seconds: float) -> object:
        """Return when the worker has ended, or after `timeout_seconds`."""
        ...

    def describe_end(self) -> str:
        """How the worker ended, and the end of its log."""
        ...


class Launcher(Protocol):
    """Gives workers a process and cores of their own."""

    async def launch(self, job: WorkerJob, receives: Any) -> Link[Any]:
        """Start a worker; `receives` is the union of its messages to us. The same job again is its successor."""
        ...

    async def close(self) -> None:
        """Let go of what the workers shared; their links are closed by whoever holds them."""
        ...
