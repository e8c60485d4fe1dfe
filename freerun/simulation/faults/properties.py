"""Properties that must hold in every run, with any faults: one small checker per property.

A checker is told what happens at the links and what the controller emits, and reports violations. It never
raises: the controller would treat the exception as its own failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from freerun.controller.checkpoint import ControllerState
from freerun.controller.stages import Stages
from freerun.events.events import AnyEvent, EvalFinished, EvalSkipped, GroupFinished, StepFinished, WorkerDied
from freerun.simulation.faults import durations as d
from freerun.simulation.faults.explanations import explains_death, explains_error
from freerun.simulation.faults.scenario import Fault, Scenario
from freerun.types import Group, Request

if TYPE_CHECKING:
    from freerun.simulation.faults.scripted_engine import ScriptedEngine

MAX_SESSION_SECONDS = 20_000.0
PATIENCE = 10.0
"""A version may take this many times the duration of the longest rollout."""
LOST_OUTCOMES = frozenset({"failed", "filtered", "dropped", "passed_over"})
"""Outcomes of prompts that are not trained on."""


@dataclass
class SessionView:
    """What checkers may look at in one session of a scenario."""

    scenario: Scenario
    number: int
    faults: list[Fault]
    """Faults injected so far."""
    clock: Callable[[], float]
    stages: Stages | None = None
    """None until the workers have started."""


@dataclass(frozen=True)
class SessionResult:
    """How a session ended; a killed session has no result."""

    error: BaseException | None
    engines: Sequence[ScriptedEngine]
    """Engines alive, before they are closed."""


class Property:
    """A checker; every method handles one kind of event."""

    number = 0
    promise = ""

    def __init__(self, report: Callable[[Property, str], None]) -> None:
        self._report = report
        self.view: SessionView

    def require(self, is_kept: bool, broken: str) -> None:
        if not is_kept:
            self._report(self, broken)

    def begin(self, view: SessionView) -> None:
        self.view = view

    def sent(self, engine: ScriptedEngine, requests: Sequence[Request]) -> None: ...
    def pinned(self, engine: ScriptedEngine, version: int) -> None: ...
    def sampled_pinned(self, engine: ScriptedEngine, request: Request) -> None: ...
    def loaded(self, engine: ScriptedEngine, version: int) -> None: ...
    def published(self, version: int, engines: Iterable[ScriptedEngine]) -> None: ...
    def batch(self, version: int, groups: Sequence[Group]) -> None: ...
    def trained(self, version: int, groups: Sequence[Group]) -> None: ...
    def saved(self, asked: int, version: int) -> None: ...
    def captured(self, state: ControllerState) -> None: ...
    def sealed(self, state: ControllerState) -> None: ...
    def restored(self, state: ControllerState | None) -> None: ...
    def emitted(self, event: AnyEvent) -> None: ...
    def complained(self, message: str) -> None: ...
    def ended(self, result: SessionResult) -> None: ...


class BoundedStaleness(Property):
    number, promise = 1, "nothing staler than max_staleness is trained on"

    def batch(self, version: int, groups: Sequence[Group]) -> None:
        bound = self.view.scenario.recipe.buffer.max_staleness
        for group in groups:
            staleness = version - group.oldest_version
            self.require(0 <= staleness <= bound, f"group {group.ordinal} has staleness {staleness} of {bound}")


class RisingSpans(Property):
    number, promise = 2, "versions within a completion rise, from the version of its start"

    def batch(self, version: int, groups: Sequence[Group]) -> None:
        for group in groups:
            for trajectory in group.trajectories:
                versions = [span.version for span in trajectory.completion.spans if span.version is not None]
                self.require(
                    versions == sorted(versions) and group.start_version <= versions[0],
                    f"group {group.ordinal}, started at version {group.start_version}, has tokens of {versions}",
                )


class ExactLedger(Property):
    number, promise = 3, "every prompt is trained on once, owed, or lost by name, over all sessions"

    def __init__(self, report: Callable[[Property, str], None]) -> None:
        super().__init__(report)
        self._trained: set[int] = set()
        self._lost: set[int] = set()
        self._kept: dict[int, tuple[set[int], set[int]]] = {}
        """Trained and lost ordinals at the time a checkpoint was captured, by its version."""

    def restored(self, state: ControllerState | None) -> None:
        trained, lost = self._kept[state.version] if state else (set[int](), set[int]())
        self._trained, self._lost = {*trained}, {*lost}

    def batch(self, version: int, groups: Sequence[Group]) -> None:
        ordinals = [group.ordinal for group in groups]
        again = [ordinal for ordinal in ordinals if ordinal in self._trained or ordinals.count(ordinal) > 1]
        self.require(not again, f"trained on twice: {again}")

    def trained(self, version: int, groups: Sequence[Group]) -> None:
        self._trained.update(group.ordinal for group in groups)

    def emitted(self, event: AnyEvent) -> None:
        if isinstance(event, GroupFinished) and event.outcome in LOST_OUTCOMES:
            self._lost.add(event.ordinal)

    def captured(self, state: ControllerState) -> None:
        self._kept[state.version] = ({*self._trained}, {*self._lost})

    def sealed(self, state: ControllerState) -> None:
        trained, lost = self._kept[state.version]
        owed = [*(group.ordinal for group in state.buffer.ready), *state.buffer.to_restart]
        accounted = sorted([*owed, *trained, *lost])
        missing = sorted({*range(state.cursor)}.symmetric_difference(accounted))
        done = {*range(state.buffer.done.mark), *state.buffer.done.above}
        undone = sorted(done.symmetric_difference(trained | lost))
        twice = [first for first, second in pairwise(accounted) if first == second]
        self.require(not missing, f"checkpoint {state.version} of {state.cursor} prompts does not know {missing}")
        self.require(not twice, f"checkpoint {state.version} has {twice} twice")
        self.require(not undone, f"checkpoint {state.version} and the events disagree whether {undone} are done")


class WholeBatches(Property):
    number, promise = 4, "every version is made from one whole batch"

    def batch(self, version: int, groups: Sequence[Group]) -> None:
        wanted = self.view.scenario.recipe.train.prompts_per_step
        self.require(len(groups) == wanted, f"the batch of version {version} has {len(groups)} of {wanted} groups")

    def sealed(self, state: ControllerState) -> None:
        wanted = state.version * self.view.scenario.recipe.train.prompts_per_step
        num_trained = state.buffer.totals.get("trained", 0)
        self.require(num_trained == wanted, f"{num_trained} groups are trained at version {state.version}")


class ExactGate(Property):
    number, promise = 5, "the gate counts what is consumed or live, and never admits too much"

    def __init__(self, report: Callable[[Property, str], None]) -> None:
        super().__init__(report)
        self._restored_ahead: int | None = None
        """`ahead` of the checkpoint, until the session's gate has been checked."""

    def restored(self, state: ControllerState | None) -> None:
        self._restored_ahead = state.ahead if state else None

    def emitted(self, event: AnyEvent) -> None:
        if self.view.stages is not None:
            self._check(self.view.stages)

    def ended(self, result: SessionResult) -> None:
        if self.view.stages is not None:
            self._check(self.view.stages)

    def _check(self, stages: Stages) -> None:
        recipe, gate, counts = self.view.scenario.recipe, stages.gate, stages.buffer.counts
        self.require(gate.capacity >= 0, f"the gate has a capacity of {gate.capacity}")
        live = (counts.running + counts.ready) * recipe.sampling.group_size
        expected = stages.buffer.version * recipe.batch_size + live
        self.require(gate.started == expected, f"the gate counts {gate.started} samples instead of {expected}")
        most = recipe.buffer.max_staleness * recipe.batch_size
        is_within = min(recipe.batch_size, most) <= gate.ahead <= most
        self.require(is_within, f"the gate lets {gate.ahead} samples start ahead; the bound allows {most}")
        if self._restored_ahead is not None:
            wanted, self._restored_ahead = self._restored_ahead, None
            self.require(gate.ahead == wanted, f"the gate starts {gate.ahead} ahead, its checkpoint {wanted}")


class UntouchedWeights(Property):
    number, promise = 6, "no live engine reads the weights that a publication overwrites"

    def published(self, version: int, engines: Iterable[ScriptedEngine]) -> None:
        for engine in engines:
            in_use = engine.versions_in_use
            self.require(
                not in_use or min(in_use) >= version - 1,
                f"version {version} overwrites {version - 2}, and {engine.name} uses {in_use}",
            )


class OneEnginePerRequest(Property):
    number, promise = 7, "requests go to engines that are ready, each to one"

    def __init__(self, report: Callable[[Property, str], None]) -> None:
        super().__init__(report)
        self._holders: dict[int, ScriptedEngine] = {}

    def begin(self, view: SessionView) -> None:
        super().begin(view)
        self._holders = {}

    def sent(self, engine: ScriptedEngine, requests: Sequence[Request]) -> None:
        self.require(engine.is_ready, f"{engine.name} was sent requests before it was ready")
        ids = [request.request_id for request in requests]
        self.require(len({*ids}) == len(ids), f"{engine.name} was sent {ids} in one message")
        for request in requests:
            holder = self._holders.get(request.request_id)
            is_held = holder is not None and holder.link.is_alive and request.request_id in holder.requests
            self.require(not is_held, f"request {request.request_id} was sent twice, the second to {engine.name}")
            self._holders[request.request_id] = engine


class NothingLeftRunning(Property):
    number, promise = 8, "when a session ends, no engine holds a request or a pinned version"

    def ended(self, result: SessionResult) -> None:
        for engine in result.engines:
            if not engine.is_stuck and result.error is None:
                held = sorted(engine.requests)
                self.require(not held, f"{engine.name} still holds {held}")


class OneVersionPinned(Property):
    number, promise = 9, "an evaluation is sampled by the version that it is of"

    def pinned(self, engine: ScriptedEngine, version: int) -> None:
        self.require(version == engine.version, f"{engine.name} pins {version} and has {engine.version}")

    def sampled_pinned(self, engine: ScriptedEngine, request: Request) -> None:
        self.require(
            engine.pinned == request.pinned_version,
            f"{engine.name} has pinned {engine.pinned} and serves version {request.pinned_version}",
        )

    def emitted(self, event: AnyEvent) -> None:
        if isinstance(event, EvalSkipped) and not self.view.faults:
            is_expected = any(words in event.reason for words in ("still runs", "was stopped", "could be graded"))
            self.require(is_expected, f"version {event.version} is not evaluated: {event.reason}")
        if isinstance(event, EvalFinished):
            sampled = {v for group in event.groups for t in group for v in map(int, t.completion.versions)}
            self.require(sampled <= {event.version}, f"the evaluation of {event.version} has tokens of {sampled}")


class ExplainedEnds(Property):
    number, promise = 10, "a session ends in time, and in an error only if a fault explains it"

    def emitted(self, event: AnyEvent) -> None:
        if isinstance(event, WorkerDied):
            is_explained = any(explains_death(fault, event.worker) for fault in self.view.faults)
            self.require(is_explained, f"{event.worker} died of no fault: {event.reason}")

    def ended(self, result: SessionResult) -> None:
        if result.error is not None:
            is_explained = explains_error(self.view.faults, result.error)
            what = f"{type(result.error).__name__}: {result.error}"
            self.require(is_explained, f"the session ended with an error that no fault explains: {what}")


class NothingUnread(Property):
    number, promise = 11, "no exception is left for the event loop to complain about"

    def complained(self, message: str) -> None:
        self.require(False, message)


class SteadyProgress(Property):
    number, promise = 12, "without faults, versions follow each other within ten times the longest rollout"

    def begin(self, view: SessionView) -> None:
        super().begin(view)
        self._last = 0.0

    def emitted(self, event: AnyEvent) -> None:
        if isinstance(event, StepFinished):
            self._check(f"version {event.result.version}")
            self._last = self.view.clock()

    def ended(self, result: SessionResult) -> None:
        self._check("the end of the session")

    def _check(self, what: str) -> None:
        seconds, limit = self.view.clock() - self._last, PATIENCE * longest_round(self.view.scenario)
        self.require(bool(self.view.faults) or seconds <= limit, f"{what} took {seconds:.0f} s of {limit:.0f}")


class OneVersionSaved(Property):
    number, promise = 13, "a checkpoint is of one version: weights, state and buffer"

    def saved(self, asked: int, version: int) -> None:
        self.require(asked == version, f"the trainer was asked to save version {asked} and has {version}")

    def sealed(self, state: ControllerState) -> None:
        versions = state.version, state.buffer.version
        self.require(versions[0] == versions[1], f"state and buffer are of versions {versions}")


ALL: tuple[type[Property], ...] = (
    BoundedStaleness, RisingSpans, ExactLedger, WholeBatches, ExactGate, UntouchedWeights, OneEnginePerRequest,
    NothingLeftRunning, OneVersionPinned, ExplainedEnds, NothingUnread, SteadyProgress, OneVersionSaved,
)  # fmt: skip


def longest_round(scenario: Scenario) -> float:
    """Seconds of the longest rollout after an evaluation, plus everything else a step needs."""
    rollout = d.PARTS_PER_ROLLOUT * scenario.tail_seconds * scenario.slow_factor
    return 2 * rollout + d.ENGINE_START + d.LOAD + d.PUBLISH + d.SAVE + d.TRAIN
