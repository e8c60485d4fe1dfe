"""Injects faults into workers' links, the disk, the machine, and the controller's own process.

Each function takes the world and a fault, and says whether there was a target for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from freerun.simulation.faults import durations as d
from freerun.simulation.faults.scenario import Fault, FaultKind
from freerun.simulation.faults.scripted_engine import ScriptedEngine
from freerun.simulation.faults.scripted_workers import ScriptedGrader, ScriptedTrainer
from freerun.simulation.virtual_time import stand_still
from freerun.simulation.worker_link import SimulatedLink
from freerun.workers.rollout_pool import RolloutPool

if TYPE_CHECKING:
    from freerun.simulation.faults.world import FaultWorld

W = TypeVar("W", ScriptedEngine, ScriptedGrader, ScriptedTrainer)
MAX_REFUSALS = 5
MAX_FAILURE_RATE = 0.5


def apply_fault(world: FaultWorld, fault: Fault) -> bool:
    """Inject the fault; False if there is no target for it."""
    if fault.kind in _TO_THE_RUN:
        _TO_THE_RUN[fault.kind](world, fault)
        return True
    if fault.kind in _TO_THE_POOL:
        return world.pool is not None and bool(_TO_THE_POOL[fault.kind](world.pool))
    role = fault.kind.split()[0]
    links = [link for name, link in sorted(world.links.items()) if name.startswith(role)]
    link = links[fault.target % len(links)] if links else None
    if link is None or not link.is_alive or not link.is_placed:
        return False
    _TO_A_WORKER[fault.kind](world, link, fault)
    return True


def _die(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    link.die("exited with status 1")


def _die_on_leaving(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    """Retire some rollout workers now, and let them die before they have finished."""
    if fault.strength > 0.7 and world.pool is not None and (name := world.pool.retire()):
        link = world.links[name]
    _die(world, link, fault)


def _lose_machine(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    """Take the machine away; half of the workers get another one immediately."""
    world.homeless[link.name] = max(0.0, 2 * fault.strength - 1) * d.WITHOUT_MACHINE
    link.take_away()


def _fall_silent(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    link.fall_silent()


def _get_stuck(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    """Hang now, or for some engines in their next load: only then may they be waited for without a request."""
    worker = _scripted(link)
    if isinstance(worker, ScriptedEngine) and fault.strength > 0.6:
        worker.hangs_in_load = True
    else:
        worker.is_stuck = True


def _send_nonsense(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    link.send_nonsense()


def _slow_down(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    worker = _scripted(link)
    assert not isinstance(worker, ScriptedGrader)
    worker.slowness = fault.strength


def _refuse(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    engine = _scripted(link)
    assert isinstance(engine, ScriptedEngine)
    engine.num_refusals = 1 + int(fault.strength * MAX_REFUSALS)


def _fail_grades(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    grader = _scripted(link)
    assert isinstance(grader, ScriptedGrader)
    grader.failure_rate = fault.strength * MAX_FAILURE_RATE


def _send_wrong_number(world: FaultWorld, link: SimulatedLink, fault: Fault) -> None:
    grader = _scripted(link)
    assert isinstance(grader, ScriptedGrader)
    grader.sends_wrong_number = True


def _scripted(link: SimulatedLink) -> ScriptedEngine | ScriptedTrainer | ScriptedGrader:
    assert isinstance(link.worker, ScriptedEngine | ScriptedTrainer | ScriptedGrader)
    return link.worker


def _fill_disk(world: FaultWorld, fault: Fault) -> None:
    """Let one checkpoint fail: the trainer's files, or the state that the controller adds."""
    world.disk_faults.append("the trainer's files" if fault.strength < 0.5 else "the state")


def _take_room(world: FaultWorld, fault: Fault) -> None:
    """Let the next process starts fail: one, or so many that a grader cannot be replaced.

    In the latter case the system also kills a process to get memory back.
    """
    world.num_refused_starts += 1 if fault.strength < 0.3 else 4
    if fault.strength >= 0.3:
        apply_fault(world, dataclasses.replace(fault, kind="grader dies"))


def _stand_still(world: FaultWorld, fault: Fault) -> None:
    stand_still(fault.strength * d.STANDING_STILL)


_TO_A_WORKER: dict[FaultKind, Callable[[FaultWorld, SimulatedLink, Fault], None]] = {
    "rollout dies": _die_on_leaving,
    "rollout loses its machine": _lose_machine,
    "rollout falls silent": _fall_silent,
    "rollout gets stuck": _get_stuck,
    "rollout sends nonsense": _send_nonsense,
    "rollout loads slowly": _slow_down,
    "rollout refuses": _refuse,
    "trainer dies": _die,
    "trainer falls silent": _fall_silent,
    "trainer gets stuck": _get_stuck,
    "trainer sends nonsense": _send_nonsense,
    "trainer slows down": _slow_down,
    "grader dies": _die,
    "grader gets stuck": _get_stuck,
    "grader sends nonsense": _send_nonsense,
    "grader sends a wrong number": _send_wrong_number,
    "grader fails": _fail_grades,
}
_TO_THE_RUN: dict[FaultKind, Callable[[FaultWorld, Fault], None]] = {
    "disk full": _fill_disk,
    "no room for a process": _take_room,
    "controller stands still": _stand_still,
}
_TO_THE_POOL: dict[FaultKind, Callable[[RolloutPool], str]] = {
    "a worker retires": RolloutPool.retire,
    "a worker is added": RolloutPool.add,
}
