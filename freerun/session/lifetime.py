"""One session of any run: its clock, its signals, its events and its end.

    RunStarted ─► work ─► RunFinished (finished, interrupted or failed, with the reason)

The first Ctrl-C, SIGTERM or SIGHUP (the terminal was closed) finishes the step and saves, the second one stops
immediately. A `Lifetime` knows nothing about the work except how to ask it to stop.
"""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint
from freerun.errors import FreerunError, WorkerError
from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    RunFinished,
    RunOutcome,
    SftStep,
    StepFinished,
)
from freerun.session.attachments import StopSwitch
from freerun.session.listeners import Listeners
from freerun.session.provenance import session_start
from freerun.types import Doing
from freerun.workers.messages import DIVERGED

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Lifetime:
    """Create it inside the run's event loop; `run` covers the whole session."""

    def __init__(
        self,
        recipe: Recipe,
        directory: Path,
        listeners: Listeners,
        *,
        checkpoint: Checkpoint | None = None,
        stop: StopSwitch | None = None,
    ) -> None:
        self.version = checkpoint.state.version if checkpoint else 0
        """The trainer's version, according to events so far."""
        self._sft_step = checkpoint.state.sft.step if checkpoint and checkpoint.state.sft else 0
        self.is_stopping = False
        self.why_early = ""
        """Why the work ended before all its steps; empty if it did not."""
        self.unsaved = ""
        """Why a checkpoint could not be written; empty if none failed."""
        self._recipe = recipe
        self._directory = directory
        self._listeners = listeners
        self._stop = stop or StopSwitch()
        self._newest = checkpoint.directory if checkpoint else None
        self._request_stop: Callable[[], None] | None = None
        self._activities: dict[str, Doing] = {}
        self._main = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._start_time = self._loop.time() - (checkpoint.state.seconds if checkpoint else 0.0)

    @property
    def seconds(self) -> float:
        """The run's clock: time since its first start, without the gaps between sessions."""
        return self._loop.time() - self._start_time

    async def run(self, work: Awaitable[None]) -> RunFinished:
        """Do the work to its end. Failures that a user can act on become the outcome; bugs are raised."""
        self._listen_for_stops()
        outcome: RunOutcome = "failed"
        reason = "an internal error; the traceback follows"
        self._emit_start()
        try:
            await work
            outcome, reason = ("interrupted", "") if self.is_stopping else ("finished", self.why_early)
        except asyncio.CancelledError:
            outcome, reason = "interrupted", "stopped at once, without a checkpoint of the last steps"
        except FreerunError as error:
            reason = self.explain(error)
        finally:
            finished = self._emit_end(outcome, reason)
        return finished

    def on_stop(self, request_stop: Callable[[], None]) -> None:
        """From now on, let a signal finish the step and save; before this call, a signal stops immediately."""
        self._request_stop = request_stop

    def emit(self, event: AnyEvent) -> None:
        """Pass an event to all listeners; raises if the run cannot continue after it."""
        match event:
            case Activity():
                if self._activities.get(event.worker) == event.doing:
                    return
                self._activities[event.worker] = event.doing
            case SftStep():
                self._listeners.check()
            case StepFinished():
                self.version = event.result.version
                self._listeners.check()  # a store that cannot write must be noticed within a step
                if event.result.metrics.get(DIVERGED):
                    raise WorkerError(
                        f"training diverged: after step {self.version} the weights or the logits are not finite; "
                        "resume with a lower train.lr"
                    )
            case CheckpointSaved():
                self._newest = Path(event.directory)
        self._listeners(event)

    def act(self, worker: str, doing: Doing) -> None:
        """Report what a process is doing from now on."""
        self.emit(Activity(seconds=self.seconds, worker=worker, doing=doing))

    def flush(self) -> None:
        """Return when everything emitted so far is on disk."""
        self._listeners.flush()

    def describe_newest(self) -> str:
        if self._newest is None:
            return "there is no checkpoint before it"
        return f"resume the run from its newest checkpoint, {self._newest}"

    def explain(self, error: FreerunError) -> str:
        """Why the run ended and, if saving was tried, why its last steps could not be saved."""
        reason = str(error)
        return f"{reason}; {self.unsaved}" if self.unsaved and self.unsaved not in reason else reason

    def _listen_for_stops(self) -> None:
        self._stop.connect(lambda: self._loop.call_soon_threadsafe(self._on_signal))
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread handles signals
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # respect nohup, which ignores SIGHUP
                self._loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self.is_stopping or self._request_stop is None:
            if self._main is not None:
                self._main.cancel()
            return
        self.is_stopping = True
        self.act("controller", Doing("stopping", "the step is finished and saved; Ctrl-C again stops at once"))
        self._request_stop()

    def _emit_start(self) -> None:
        self.emit(
            session_start(
                self._recipe,
                self._directory,
                seconds=self.seconds,
                version=self.version,
                sft_step=self._sft_step,
            )
        )

    def _emit_end(self, outcome: RunOutcome, reason: str) -> RunFinished:
        finished = RunFinished(
            seconds=self.seconds,
            outcome=outcome,
            reason=reason,
            version=self.version,
            model_directory=str(self._newest / "model") if self._newest else "",
        )
        self.emit(finished)
        return finished
