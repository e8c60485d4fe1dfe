"""Plays a scenario: one session after another, each in a new event loop, until the run has made its last step.

Only the newest sealed checkpoint survives a session, as bytes. Everything above the links is real and assembled
as in `session/train.py`; prompts are only numbers, and no file is written.
"""

import asyncio
import contextlib
import gc
import itertools
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np

from freerun.controller.checkpoint import Checkpoint, ControllerState
from freerun.controller.controller import Controller
from freerun.data.mixture import PromptStream
from freerun.errors import CheckpointError
from freerun.events.events import AnyEvent, CheckpointSaved, WorkerDied
from freerun.rollout.single_turn import SingleTurn, to_sampling
from freerun.session.assembly import (
    RunGrader,
    make_balance,
    make_grader,
    make_rollout_pool,
    make_stages,
    make_trainer,
    wait_for_losses,
)
from freerun.session.trainer_start import trainer_start
from freerun.simulation.faults import durations as d
from freerun.simulation.faults.happenings import in_words
from freerun.simulation.faults.properties import MAX_SESSION_SECONDS, SessionResult, SessionView
from freerun.simulation.faults.scenario import Fault, Scenario
from freerun.simulation.faults.world import FaultWorld, Properties, Violation
from freerun.simulation.virtual_time import DeadlockError, TimeLimitError, run_in_virtual_time
from freerun.types import Prompt, decoder_for, encode
from freerun.workers.rollout_pool import RolloutPool
from freerun.workers.trainer_client import TrainerClient

SessionOutcome = Literal["ended", "stopped", "killed", "failed"]
NUM_KEYS = 7
"""Number of prompts in an epoch."""
Listen = Callable[[AnyEvent], None]


@dataclass
class Played:
    """The result of a scenario."""

    scenario: Scenario
    outcomes: list[SessionOutcome] = field(default_factory=list)
    """The outcome of each session."""
    faults: list[Fault] = field(default_factory=list)
    """The faults that were injected."""
    timeline: list[str] = field(default_factory=list)
    violation: Violation | None = None


class NumberedPrompts:
    """Prompts that consist only of their ordinals; a few of them repeat."""

    fingerprint = "numbers"
    num_too_long = 0
    epoch_size = NUM_KEYS

    def __init__(self) -> None:
        self.cursor = 0
        self._token_ids = np.array([1], np.int32)

    def at(self, ordinal: int) -> Prompt:
        key = str(ordinal % NUM_KEYS)
        return Prompt(ordinal=ordinal, key=key, text="", answer="", token_ids=self._token_ids)

    def take(self) -> Prompt:
        self.cursor += 1
        return self.at(self.cursor - 1)

    def held_out(self, limit: int) -> list[Prompt]:
        return [self.at(-1 - index) for index in range(limit)]


def play(scenario: Scenario, *, listen: Listen = lambda event: None) -> Played:
    """Play all sessions, or up to the first violation."""
    played, properties = Played(scenario), Properties()
    disk = Disk()
    with _only_new_garbage():
        for number in range(scenario.num_sessions):
            session = FaultSession(scenario, number, disk, properties, played, listen)
            played.outcomes.append(session.play())
            gc.collect()  # an exception that was never retrieved is reported when its task is deleted
            properties.is_watching = False
            if properties.violation is not None or session.is_last:
                break
        else:
            properties.break_promise(10, f"not over after {len(played.outcomes)} sessions: {played.outcomes}")
    played.violation = properties.violation
    return played


@contextlib.contextmanager
def _only_new_garbage() -> Iterator[None]:
    """Make `gc.collect` look only at objects created from now on."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class Disk:
    """The newest checkpoint, as bytes."""

    def __init__(self) -> None:
        self._sealed: bytes | None = None

    def seal(self, encoded: bytes) -> None:
        self._sealed = encoded

    def newest(self) -> Checkpoint | None:
        if self._sealed is None:
            return None
        return Checkpoint(Path("simulated"), _DECODER.decode(self._sealed), has_optimizer=True)


_DECODER: msgspec.msgpack.Decoder[ControllerState] = decoder_for(ControllerState)


class FaultSession:
    """One session of a scenario: from its start to its end, a signal, an error or a kill."""

    def __init__(
        self,
        scenario: Scenario,
        number: int,
        disk: Disk,
        properties: Properties,
        played: Played,
        listen: Listen,
    ) -> None:
        self._scenario, self._recipe = scenario, scenario.recipe
        self._number = number
        self._disk = disk
        self._checkpoint = disk.newest()
        self._properties = properties
        self._played = played
        self._listen = listen
        self._is_killed = False
        self._controller: Controller | None = None

    @property
    def is_last(self) -> bool:
        """Whether it has made the last step and saved it."""
        newest = self._disk.newest()
        is_over = newest is not None and newest.state.version == self._recipe.train.num_steps
        return is_over and self._played.outcomes[-1] == "ended"

    def play(self) -> SessionOutcome:
        try:
            return run_in_virtual_time(self._play(), max_seconds=MAX_SESSION_SECONDS)
        except (DeadlockError, TimeLimitError) as error:
            self._properties.break_promise(10, str(error))
            return "failed"
        finally:
            self._properties.on_violation = lambda: None  # its event loop is closed

    async def _play(self) -> SessionOutcome:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_complaint)
        self._world = FaultWorld(self._scenario, self._number, self._properties, note=self._note)
        self._view = SessionView(self._scenario, self._number, self._world.faults, loop.time)
        self._properties.begin(self._view)
        state = self._checkpoint.state if self._checkpoint else None
        self._properties.tell("restored", state)
        self._note(0.0, f"session {self._number} starts at version {state.version if state else 0}")
        violated: asyncio.Future[None] = loop.create_future()
        self._properties.on_violation = partial(violated.set_result, None)
        running = asyncio.ensure_future(self._run())
        outcome = await self._run_to_end(running, violated)
        self._played.faults += self._world.happened
        if outcome != "killed":
            await asyncio.wait({running})
            outcome = self._judge(running, outcome)
        self._note(loop.time(), f"session {self._number} {outcome}")
        return outcome

    async def _run_to_end(self, running: asyncio.Future[None], violated: asyncio.Future[None]) -> SessionOutcome:
        """Let the session run, and end it as the scenario says."""
        outcome: SessionOutcome = "ended"
        ending = self._scenario.ending(self._number)
        if ending != "end":
            seconds = self._scenario.ending_seconds(self._number)
            done, _ = await asyncio.wait({running, violated}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self._note(asyncio.get_running_loop().time(), ending)
                if ending == "kill -9":
                    return self._kill()
                outcome = "stopped"
                self._stop(running, is_second=ending == "Ctrl-C twice")
        await asyncio.wait({running, violated}, return_when=asyncio.FIRST_COMPLETED)
        return outcome if running.done() else self._kill()

    def _kill(self) -> SessionOutcome:
        """Kill the controller: later events do not count."""
        self._is_killed = True
        self._properties.is_watching = False
        return "killed"

    def _stop(self, running: asyncio.Future[None], *, is_second: bool) -> None:
        """Handle a signal as `session/lifetime.py` does."""
        if is_second or self._controller is None:
            running.cancel()
        else:
            self._controller.request_stop()

    def _judge(self, running: asyncio.Future[None], outcome: SessionOutcome) -> SessionOutcome:
        if not running.cancelled() and (error := running.exception()) is not None:
            self._note(self._view.clock(), f"error: {error}")
            self._properties.tell("ended", SessionResult(error, ()))
            return "failed"
        return outcome

    # ---- as in session/train.py -----------------------------------------------------------------

    async def _run(self) -> None:
        recipe, launcher = self._recipe, self._world.launcher
        grader = make_grader(recipe, launcher, self._on_death)
        pool = make_rollout_pool(
            recipe,
            launcher,
            model_directory=Path("simulated"),
            on_report=lambda worker, stats: None,
            on_death=self._on_death,
        )
        trainer = await make_trainer(recipe, launcher, on_progress=lambda doing: None)
        try:
            start = trainer_start(
                recipe, self._checkpoint, companions=Path(), reference=Path(), weights=launcher.weights
            )
            await asyncio.gather(trainer.start(start), asyncio.gather(pool.start(), grader.start()))
            await self._run_controller(trainer, pool, grader)
        finally:
            self._world.end_faults()
            await asyncio.gather(trainer.close(), pool.close(), grader.close())

    async def _run_controller(self, trainer: TrainerClient, pool: RolloutPool, grader: RunGrader) -> None:
        recipe, state = self._recipe, self._checkpoint.state if self._checkpoint else None
        source = NumberedPrompts()
        source.cursor = state.cursor if state else 0
        sampling, request_ids = to_sampling(recipe.sampling, ()), itertools.count()
        stages = make_stages(
            recipe,
            self._checkpoint,
            source=cast(PromptStream, source),
            workflow=SingleTurn(sampling, num_samples=recipe.sampling.group_size, request_ids=request_ids),
            evaluation_workflow=SingleTurn(sampling, num_samples=recipe.eval.num_samples, request_ids=request_ids),
            generator=pool,
            grader=grader,
            trainer=trainer,
        )

        def save(state: ControllerState) -> Coroutine[Any, Any, None]:
            self._properties.tell("captured", state)
            files = trainer.save("simulated", version=state.version)
            return self._finish_saving(files, state.version, encode(state))

        balance = make_balance(recipe, pool, self._emit)

        def emit(event: AnyEvent) -> None:
            self._emit(event)
            balance(event)

        self._view.stages, self._world.pool = stages, pool
        self._controller = Controller(
            recipe,
            stages,
            emit=emit,
            save_checkpoint=save,
            lost_workers=wait_for_losses(trainer, pool, grader),
            version=state.version if state else 0,
            seconds=state.seconds if state else 0.0,
        )
        await self._controller.run()
        self._world.end_faults()
        self._properties.tell("ended", SessionResult(None, tuple(self._world.engines())))

    async def _finish_saving(self, files: Any, version: int, encoded: bytes) -> None:
        await files
        await asyncio.sleep(d.SEAL * self._world.dice.share("seal", version))
        if self._world.is_disk_full("the state"):
            raise CheckpointError(f"version {version} was not saved: no space left on device")
        if not self._is_killed:
            self._properties.tell("sealed", _DECODER.decode(encoded))
            self._disk.seal(encoded)
            self._emit(CheckpointSaved(seconds=self._view.clock(), version=version, directory="simulated"))

    # ---- what happens ---------------------------------------------------------------------------

    def _emit(self, event: AnyEvent) -> None:
        if not self._is_killed:
            self._properties.tell("emitted", event)
            self._listen(event)
            if words := in_words(event):
                self._note(self._view.clock(), words)

    def _on_death(self, worker: str, reason: str, is_restarted: bool) -> None:
        seconds = self._view.clock()
        self._emit(WorkerDied(seconds=seconds, worker=worker, reason=reason, is_restarted=is_restarted))

    def _on_complaint(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._properties.tell("complained", f"{context['message']}: {context.get('exception')!r}")

    def _note(self, seconds: float, what: str) -> None:
        self._played.timeline.append(f"{seconds:9.3f} s  {what}")
