"""The seam between the controller and its workers: a `Link` to one worker, a `Launcher` that starts them.

A worker is a module whose `__main__` serves typed messages (`parent.py`). The launcher decides only where it
runs: on this machine (`local.py`), or on a node of a Ray cluster (`freerun.backends.ray.cluster`). Neither the
worker nor the pools that talk to it can tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from freerun.types import WeightRoute

M_co = TypeVar("M_co", covariant=True)
WorkerRole = Literal["rollout", "trainer", "grader", "agent"]


@dataclass(frozen=True)
class WorkerJob:
    name: str
    """Its name in messages and of its log; unique among the workers of a run."""
    role: WorkerRole
    module: str
    """Run as `python -m module`."""
    weights: WeightRoute | None = None
    """How it publishes or loads weights; None if it does neither."""


class Mortal(Protocol):
    """A process that can be killed."""

    def kill(self) -> None:
        """Kill the worker and all that it started; a no-op when it has ended."""

    async def wait(self, timeout_seconds: float) -> object:
        """Return when the worker has ended, or after `timeout_seconds`."""

    def describe_end(self) -> str:
        """How the worker ended, and the end of its log."""


class Link(Mortal, Protocol[M_co]):
    """One worker and the typed messages to and from it."""

    name: str

    @property
    def is_alive(self) -> bool: ...

    @property
    def is_placed(self) -> bool:
        """Whether it has a machine to run on; until then no message is expected."""

    @property
    def was_taken_away(self) -> bool:
        """Whether it ended because its machine was lost or it was killed from outside, not by itself.

        Then a successor may do better, even if it was not ready yet. Known once it has ended.
        """

    @property
    def seconds_silent(self) -> float:
        """Awake seconds (`patience.py`) since its last message; a healthy worker sends one every second.

        Only meaningful while a task is in `receive`.
        """

    def send(self, message: Any) -> None:
        """Queue a message; never waits. To a dead worker it is lost: `receive` reports the death."""

    async def receive(self) -> M_co | None:
        """The worker's next message; None when it is gone. Cancelling it loses no message."""


class Launcher(Protocol):
    """Gives each worker a process and cores."""

    @property
    def weights(self) -> WeightRoute | None:
        """How weights travel between its workers; None if the run publishes none."""

    async def launch(self, job: WorkerJob, receives: Any) -> Link[Any]:
        """Start a worker; `receives` is the union of its messages to us. The same job again is its successor."""

    def pids(self) -> Mapping[str, int]:
        """The processes that it started on this machine and that have not ended, by worker."""
        ...

    async def close(self) -> None:
        """Release what the workers shared; the owners of the links close them."""
