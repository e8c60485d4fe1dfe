"""Watches a run of another process: the same view and lines, from the run's store.

    store.sqlite ─► Follower ─► RunView        until the run ends, or its process is gone

Nothing is written, and the run does not notice. Earlier events are not shown line by line: the view begins with
the state after them.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from freerun.events.events import AnyEvent, RunFinished, StepFinished
from freerun.events.follow import Follower
from freerun.events.opening import open_state
from freerun.events.reader import RunReader, RunStatus
from freerun.events.schema import Rewound
from freerun.terminal.facts import facts, position
from freerun.terminal.recorded import describe_unfinished, place
from freerun.terminal.view import RunView

FOLLOW_SECONDS = 0.25
WATCHER_HINT = "Ctrl-C leaves it running"


def watch(directory: Path, console: Console, *, poll_seconds: float = FOLLOW_SECONDS) -> RunStatus:
    """Show the run until it has ended; returns its status, "running" if the user left first."""
    watcher = _Watcher(directory, console)
    try:
        while (status := watcher.look()) == "running":
            time.sleep(poll_seconds)
    except KeyboardInterrupt:
        watcher.leave()
        return "running"
    except BaseException:
        watcher.stop_drawing()
        raise
    watcher.end()
    return status


class _Watcher:
    def __init__(self, directory: Path, console: Console) -> None:
        self._directory = directory
        self._follower: Follower | None = None
        self._view = RunView(console, None, directory=directory, hint=WATCHER_HINT)

    def look(self) -> RunStatus:
        """Process new events. The run's liveness is checked first, so that its last events are not missed."""
        with RunReader(self._directory) as reader:
            status = reader.status()
        events = [event for _, event in self._follower.poll()] if self._follower is not None else []
        if self._follower is None or any(isinstance(event, Rewound) for event in events):
            self._begin()
        else:
            self._tell(events)
        return status.state

    def end(self) -> None:
        with RunReader(self._directory) as reader:
            status = reader.status()
        finished = self._view.state.finished
        self._close_follower()
        self._view.close(unfinished="" if finished else describe_unfinished(self._view.state, status))

    def leave(self) -> None:
        self._view.say("left; the run continues")
        self.stop_drawing()

    def stop_drawing(self) -> None:
        self._view.state.finished = None  # there is nothing to summarize
        self._close_follower()
        self._view.close()

    def _close_follower(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def _begin(self) -> None:
        """Show the current state; also after a rewind, since some shown events did not happen."""
        self._close_follower()
        with RunReader(self._directory) as reader:
            state, last_id = open_state(reader)
        self._follower = Follower(self._directory, after=last_id)
        place(state, self._directory)
        with RunReader(self._directory) as reader:
            status = reader.status()
            if state.steps:
                reader.show_batch(state, state.version)
        if status.state == "running":
            state.finished = None  # from the session before
        self._view.begin_with(state, seconds_ago=max(0.0, time.time() - status.updated))
        at = position(state, state.seconds)
        words = [f"watching run {state.name}", at.label, *(fact.line for fact in facts(state) if state.steps)]
        self._view.say("  ".join(filter(None, words)))

    def _tell(self, events: Sequence[AnyEvent | Rewound]) -> None:
        for event in events:
            assert not isinstance(event, Rewound)
            self._view(event)
        versions = [event.result.version for event in events if isinstance(event, StepFinished)]
        if versions and not any(isinstance(event, RunFinished) for event in events):
            with RunReader(self._directory) as reader:
                reader.show_batch(self._view.state, versions[-1])
