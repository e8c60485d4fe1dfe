"""The world of one session: starts scripted workers, injects faults, and informs the checkers."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from freerun.processes.link import WorkerJob
from freerun.simulation.faults.dice import Dice
from freerun.simulation.faults.injection import apply_fault
from freerun.simulation.faults.properties import ALL, Property, SessionView
from freerun.simulation.faults.scenario import PLANNED, Fault, Scenario
from freerun.simulation.faults.scripted_engine import ScriptedEngine
from freerun.simulation.faults.scripted_workers import ScriptedGrader, ScriptedTrainer
from freerun.simulation.worker_link import SimulatedLauncher, SimulatedLink, SimulatedWorker
from freerun.types import Request
from freerun.workers.rollout_pool import RolloutPool

Note = Callable[[float, str], None]
"""Called with the time and a description of each event."""


@dataclass(frozen=True)
class Violation:
    """A violated property."""

    number: int
    """Number of the property."""
    promise: str
    what: str
    session: int
    seconds: float

    def __str__(self) -> str:
        return f"property {self.number} ({self.promise}): {self.what}"


class Properties:
    """All checkers as one; keeps the first violation."""

    def __init__(self) -> None:
        self.violation: Violation | None = None
        self.on_violation: Callable[[], None] = lambda: None
        self.is_watching = False
        """False between sessions, and after a session was killed."""
        self._checkers = [kind(self._report) for kind in ALL]
        self._listeners = {
            name: [
                getattr(checker, name) for checker in self._checkers if getattr(type(checker), name) is not method
            ]
            for name, method in vars(Property).items()
            if callable(method) and not name.startswith("_")
        }
        """For each kind of event, the checkers that handle it."""
        self._view: SessionView | None = None

    def begin(self, view: SessionView) -> None:
        self._view = view
        self.is_watching = True
        for checker in self._checkers:
            checker.begin(view)

    def tell(self, happening: str, *facts: Any) -> None:
        """Report an event, named by a method of `Property`."""
        if self.is_watching:
            for listener in self._listeners[happening]:
                listener(*facts)

    def break_promise(self, number: int, what: str) -> None:
        """Report a violation that was noticed outside of a session's event loop."""
        checker = next(checker for checker in self._checkers if checker.number == number)
        self._report(checker, what)

    def _report(self, checker: Property, what: str) -> None:
        if self.violation is None and self._view is not None:
            view = self._view
            self.violation = Violation(checker.number, checker.promise, what, view.number, view.clock())
            self.on_violation()


class FaultWorld:
    """The state shared by the workers of one session."""

    def __init__(self, scenario: Scenario, session: int, properties: Properties, *, note: Note) -> None:
        self.scenario = scenario
        self.recipe = scenario.recipe
        self.dice = Dice(scenario.seed)
        self.properties = properties
        self.launcher = SimulatedLauncher(self._make_worker)
        self.homeless: dict[str, float] = {}
        """How long the successor of each worker waits for a machine."""
        self.disk_faults: list[str] = []
        self.num_refused_starts = 0
        self.happened: list[Fault] = []
        self.faults: list[Fault] = []
        """Faults injected so far, except planned ones."""
        self.pool: RolloutPool | None = None
        """None until the session's workers have started."""
        self._session = session
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._num_launches: dict[str, int] = {}
        self._attempts: dict[int, int] = {}
        self._num_requests: dict[int, int] = {}
        self._timers = [
            self._loop.call_later(fault.seconds, self._let_happen, fault)
            for fault in scenario.faults
            if fault.session == session
        ]

    @property
    def links(self) -> dict[str, SimulatedLink]:
        return self.launcher.links

    @property
    def drains(self) -> bool:
        return self.recipe.engine.kv_on_load == "drain"

    def engines(self) -> Iterator[ScriptedEngine]:
        """The engines that are alive."""
        for link in self.links.values():
            if link.is_alive and isinstance(link.worker, ScriptedEngine):
                yield link.worker

    def attempt(self, request: Request) -> int:
        """Number of earlier requests for this prompt; the same if a request is sent again."""
        if request.request_id not in self._attempts:
            self._attempts[request.request_id] = self._num_requests.get(request.ordinal, 0)
            self._num_requests[request.ordinal] = self._attempts[request.request_id] + 1
        return self._attempts[request.request_id]

    def is_disk_full(self, file: str) -> bool:
        """Whether writing this file fails now; the next attempt succeeds."""
        if file in self.disk_faults:
            self.disk_faults.remove(file)
            return True
        return False

    def end_faults(self) -> None:
        """Note that the controller has ended: no more faults are injected."""
        for timer in self._timers:
            timer.cancel()

    def _let_happen(self, fault: Fault) -> None:
        if apply_fault(self, fault):
            self.happened.append(fault)
            if fault.kind not in PLANNED:
                self.faults.append(fault)
            self._note(self._loop.time(), f"fault: {fault.kind} ({fault.target}, {fault.strength:.2f})")

    def _make_worker(self, job: WorkerJob, link: SimulatedLink) -> SimulatedWorker:
        launch = self._num_launches[job.name] = self._num_launches.get(job.name, -1) + 1
        if self.num_refused_starts:
            self.num_refused_starts -= 1
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        match job.role:
            case "trainer":
                return ScriptedTrainer(link, self)
            case "grader":
                return ScriptedGrader(link, self)
        engine = ScriptedEngine(link, self, launch=launch)
        if (seconds := self.homeless.pop(job.name, 0.0)) > 0:
            link.is_placed = False
            self._loop.call_later(seconds, partial(_place, link, engine))
        return engine


def _place(link: SimulatedLink, engine: ScriptedEngine) -> None:
    if link.is_alive:
        link.place()
        engine.start()
