"""Bugs to plant in the package: a function's source with other lines, for as long as a test runs."""

import __future__

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.controller.checkpointing import Checkpointing
from freerun.controller.freshness import AheadPolicy
from freerun.controller.rollout_loop import RolloutLoop
from freerun.controller.running_groups import RunningGroups
from freerun.controller.training_loop import TrainingLoop
from freerun.evaluation.held_out import HeldOut
from freerun.processes.supervision import Supervisor
from freerun.reward.grader_process import GraderProcess
from freerun.reward.pool import GraderPool
from freerun.session import assembly
from freerun.simulation.faults import play as fault_play
from freerun.workers.pooled_worker import PooledWorker
from freerun.workers.rollout_pool import RolloutPool
from freerun.workers.trainer_client import TrainerClient


@dataclass(frozen=True)
class Patch:
    """Lines of one function, and what stands there with the bug."""

    owner: Any
    function: str
    old: str
    new: str


@dataclass(frozen=True)
class PlantedBug:
    name: str
    property: int
    """The one that finds it."""
    patches: tuple[Patch, ...]

    def __str__(self) -> str:
        return self.name

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(_planted(patch))
            yield


@contextlib.contextmanager
def _planted(patch: Patch) -> Iterator[None]:
    original: Callable[..., Any] = inspect.getattr_static(patch.owner, patch.function)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(patch.old) == 1, f"{patch.function} has no line {patch.old!r}; plant the bug elsewhere"
    flags = __future__.annotations.compiler_flag
    code = compile(source.replace(patch.old, patch.new), f"<{patch.function} with a bug>", "exec", flags)
    names: dict[str, Any] = {}
    exec(code, vars(sys.modules[original.__module__]), names)
    setattr(patch.owner, patch.function, names[patch.function])
    try:
        yield
    finally:
        setattr(patch.owner, patch.function, original)


def bug(name: str, number: int, *patches: tuple[Any, str, str, str]) -> PlantedBug:
    return PlantedBug(name, number, tuple(Patch(*patch) for patch in patches))


UNCHECKED = (TrajectoryBuffer, "_require_fresh", "for ready in chosen:", "for ready in ():")
UNCHECKED_LABELS = (
    TrajectoryBuffer,
    "add",
    "if not start_version == group.start_version <= oldest_version:",
    "if False:",
)

BUGS = [
    bug(
        "the batch does not wait for the oldest rollouts",
        1,
        UNCHECKED,
        (TrajectoryBuffer, "_first_late_running", 'if self._policy != "wait":', "if True:"),
        (TrajectoryBuffer, "start", 'if self._policy == "wait":', "if False:"),
    ),
    bug(
        "groups never become too old",
        1,
        UNCHECKED,
        (
            TrajectoryBuffer,
            "_is_too_old",
            "return self._version - oldest_version > self._max_staleness",
            "return False",
        ),
    ),
    bug(
        "the gate advances before the engines have confirmed",
        2,
        UNCHECKED_LABELS,
        (
            TrainingLoop,
            "load",
            "await run.stages.generator.load(published)",
            "run.stages.gate.advance(published.version); run.rollouts_wake.set(); "
            "await run.stages.generator.load(published)",
        ),
    ),
    bug(
        "a checkpoint forgets what is running",
        3,
        (TrajectoryBuffer, "snapshot", "self._to_restart.union(self._running)", "self._to_restart"),
    ),
    bug(
        "a resumed run forgets what was ready",
        3,
        (
            TrajectoryBuffer,
            "restore",
            "self._version = state.version",
            "self._version = state.version; state = __import__('msgspec').structs.replace(state, ready=())",
        ),
    ),
    bug(
        "a requeued prompt is forgotten",
        3,
        (TrajectoryBuffer, "_discard", "self._to_restart.add(ordinal)", "pass"),
    ),
    bug(
        "a prompt that is passed over is forgotten",
        3,
        (RolloutLoop, "_next_prompt", "buffer.pass_over(prompt.ordinal)", "pass"),
    ),
    bug(
        "the trainer gets a batch without its first group",
        4,
        (
            TrainerClient,
            "step",
            "split_batch(groups, part_bytes=self._part_bytes)",
            "split_batch(groups[1:], part_bytes=self._part_bytes)",
        ),
    ),
    bug(
        "a failed group is not given back to the gate",
        5,
        (RolloutLoop, "leave", "self._run.stages.gate.give_back(self._group_size)", "pass"),
    ),
    bug(
        "a filtered group is not given back to the gate",
        5,
        (RunningGroups, "_finish", "stages.gate.give_back(self._group_size)", "pass"),
    ),
    bug(
        "the gate of a resumed run forgets what is ready",
        5,
        (
            assembly,
            "make_gate_and_buffer",
            "num_buffered=buffer.counts.ready * recipe.sampling.group_size",
            "num_buffered=0",
        ),
    ),
    bug(
        "freshness control starts more than the bound allows",
        5,
        (AheadPolicy, "__init__", "self._most = max_staleness * groups_per_batch", "self._most = 1000"),
    ),
    bug(
        "a resumed run forgets how fresh it was kept",
        5,
        (
            assembly,
            "make_gate_and_buffer",
            "ahead=checkpoint.state.ahead if checkpoint is not None and recipe.keeps_fresh else None",
            "ahead=None",
        ),
    ),
    bug(
        "publishing does not wait for the last load",
        6,
        (TrainingLoop, "_wait_for_engines", "if self._loading is not None:", "if False:"),
    ),
    bug(
        "a load is over when the first engine has it",
        6,
        (
            RolloutPool,
            "load",
            "bool(ready) and all(worker.has_loaded(published.version) for worker in ready)",
            "any(worker.has_loaded(published.version) for worker in ready)",
        ),
    ),
    bug(
        "requests go to engines that are not ready",
        7,
        (RolloutPool, "_dispatch", "if worker.is_ready:", "if True:"),
        (RolloutPool, "_send", "if not requests or not worker.is_ready:", "if not requests:"),
    ),
    bug(
        "a new engine gets its requests twice",
        7,
        (
            RolloutPool,
            "_welcome",
            "worker.link.send(m.Generate(requests=tuple(worker.requests.values())))",
            "worker.link.send(m.Generate(requests=tuple(worker.requests.values()) * 2))",
        ),
    ),
    bug(
        "aborted requests stay in the engine",
        8,
        (
            RolloutPool,
            "_abort",
            "worker.link.send(m.Abort(request_ids=(request_id,)))",
            "pass",
        ),
    ),
    bug(
        "a new engine pins another version",
        9,
        (
            RolloutPool,
            "_welcome",
            "if self._published.version == self._pinned_version:",
            "if self._pinned_version is not None:",
        ),
    ),
    bug(
        "any engine serves a pinned version",
        9,
        (
            RolloutPool,
            "_can_serve",
            "if request.pinned_version == worker.pinned_version:",
            "if True:",
        ),
    ),
    bug(
        "requests of a dead engine are forgotten",
        10,
        (RolloutPool, "_adopt", "for request in orphans:", "for request in ():"),
    ),
    bug(
        "requests of an engine that dies while it retires are forgotten",
        10,
        (RolloutPool, "_leave", "self._adopt(orphans)", "pass"),
    ),
    bug(
        "an engine that retires does not finish its requests",
        10,
        (
            RolloutPool,
            "_note_busy",
            "if worker.is_finished and not worker.is_dismissed:",
            "if worker.is_retiring and not worker.is_dismissed:",
        ),
    ),
    bug(
        "a load does not wait for an engine that retires",
        6,
        (
            RolloutPool,
            "load",
            "ready = [worker for worker in self._workers if worker.is_ready]",
            "ready = [worker for worker in self._workers if worker.is_ready and not worker.is_retiring]",
        ),
    ),
    bug(
        "a stuck engine is not killed",
        10,
        (RolloutPool, "_check", "worker.link.kill()", "pass"),
    ),
    bug(
        "an engine that hangs in a load is not killed",
        10,
        (PooledWorker, "is_lost", "is_stalled = self.is_busy and", "is_stalled = bool(self.requests) and"),
    ),
    bug(
        "a new engine gets no weights",
        10,
        (RolloutPool, "_welcome", "if self._published is not None:", "if False:"),
    ),
    bug(
        "rollouts are not woken after a load",
        10,
        (TrainingLoop, "load", "run.rollouts_wake.set()", "pass"),
    ),
    bug(
        "training is not woken by a finished group",
        10,
        (RunningGroups, "_run_group", "run.training_wake.set()", "pass"),
    ),
    bug(
        "a stuck trainer is not noticed",
        10,
        (TrainerClient, "_check", "if self._last_progress[asked] < before:", "if False:"),
    ),
    bug(
        "a hanging grader is waited for",
        10,
        (
            GraderProcess,
            "_receive",
            "return await within(timeout_seconds, link.receive)",
            "return await link.receive()",
        ),
    ),
    bug(
        "jobs behind one that failed are forgotten",
        10,
        (
            GraderPool,
            "_serve",
            "for job in jobs or await self._take(process)",
            "for job in await self._take(process)",
        ),
    ),
    bug(
        "a lost grader does not end the run",
        10,
        (fault_play, "wait_for_losses", "grader if isinstance(grader, GraderPool) else None", "None"),
    ),
    bug(
        "an evaluation does not release its version",
        10,
        (HeldOut, "_evaluate", "pinned.release()", "pass"),
    ),
    bug(
        "the second of two failures is not read",
        11,
        (
            Supervisor,
            "watch",
            "elif not task.cancelled():",
            "elif False:",
        ),
    ),
    bug(
        "rollouts start every few minutes",
        12,
        (
            RolloutLoop,
            "run",
            "await run.rollouts_wake.wait()",
            "await __import__('asyncio').sleep(250)",
        ),
    ),
    bug(
        "the trainer is told another version than the state has",
        13,
        (Checkpointing, "save", "version=version,", "version=version - 1,"),
    ),
]
