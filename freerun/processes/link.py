"""The interface between the controller and its workers: a `Link` to one worker, a `Launcher` that starts workers.

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
    """Name in messages and of its log; unique among the workers of a run."""
    role: WorkerRole
    module: str
    """Module to run as `python -m module`."""
    weights: WeightRoute | None = None
    """How the worker publishes or loads weights; None if it does neither."""


class Mortal(Protocol):
    """A process that can be killed."""

    def kill(self) -> None:
        """Kill the worker and everything it started; does nothing if it has ended."""

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
        """Whether the worker ended because its machine was lost or it was killed from outside, not by itself.

        If so, a successor may succeed, even if the worker was never ready. Known only once the worker has ended.
        """

    @property
    def seconds_silent(self) -> float:
        """Awake seconds (`patience.py`) since the last message; a healthy worker sends one every second.

        Only meaningful while a task is in `receive`.
        """

    def send(self, message: Any) -> None:
        """Queue a message without waiting. A message to a dead worker is lost: `receive` reports the death."""

    async def receive(self) -> M_co | None:
        """The worker's next message; None when it is gone. Cancelling it loses no message."""


class Launcher(Protocol):
    """Gives each worker a process and cores."""

    @property
    def weights(self) -> WeightRoute | None:
        """How weights travel between the workers; None if the run publishes none."""

    async def launch(self, job: WorkerJob, receives: Any) -> Link[Any]:
        """Start a worker; `receives` is the union of its messages to us. The same job again starts a successor."""

    def pids(self) -> Mapping[str, int]:
        """Pids of the running processes that it started on this machine, by worker."""
        ...

    async def close(self) -> None:
        """Release what the workers shared; the owners of the links close the links."""
