"""A recorded run: the summary at its end, or its current state, from the store alone."""

import shlex
import time
from pathlib import Path
from typing import Any

import msgspec

from freerun.events.health import examine
from freerun.events.metrics import RunState
from freerun.events.opening import recorded_state
from freerun.events.reader import RunReader, RunSummary
from freerun.events.run_files import disk_bytes, saved_versions
from freerun.terminal.facts import facts, position
from freerun.terminal.lines import summarize
from freerun.terminal.wording import describe_doing, duration, printable


def summarize_recorded(reader: RunReader) -> str:
    """The summary of a run; for a run that has not ended, what it has done and what it is doing."""
    state, status = _read_state(reader), reader.status()
    directory = reader.file.parent
    is_running = status.state == "running"
    text = summarize(
        state,
        num_bytes=disk_bytes(directory),
        kept=saved_versions(directory / "checkpoints"),
        unfinished=describe_unfinished(state, status),
        next_command=f"freerun watch {shlex.quote(state.directory)}" if is_running else "",
    )
    lines = _processes(state, status) if is_running else []
    return "\n".join([text, *lines])


def summary_as_json(reader: RunReader) -> dict[str, Any]:
    """The line of `freerun runs`, the facts of the summary by name, and the health findings."""
    state, status = _read_state(reader), reader.status()
    told = {fact.name: fact.summary for fact in facts(state) if fact.summary}
    health = msgspec.to_builtins(examine(state, now_of(state, status)))
    return {**msgspec.to_builtins(status), "directory": state.directory, "facts": told, "health": health}


def now_of(state: RunState, status: RunSummary) -> float:
    """The run's clock now, extrapolated from its last commit."""
    return state.seconds + max(0.0, time.time() - status.updated) if status.state == "running" else state.seconds


def place(state: RunState, directory: Path) -> None:
    """Set the state's directory to the run's current location, in case it was moved."""
    if Path(state.directory).resolve() != directory.resolve():
        state.directory = str(directory)


def _read_state(reader: RunReader) -> RunState:
    state = recorded_state(reader)
    place(state, reader.file.parent)
    return state


def describe_unfinished(state: RunState, status: RunSummary) -> str:
    """Describe a run that has not recorded its end."""
    if status.state != "running":
        return f"{status.state}{f': {status.reason}' if status.reason else ''}"
    at = position(state, now_of(state, status))
    return ", ".join(filter(None, [f"still running: {at.label}", at.left]))


def _processes(state: RunState, status: RunSummary) -> list[str]:
    now = now_of(state, status)
    return [
        f"{printable(worker, 10):<11}{printable(describe_doing(activity.doing))}, "
        f"for {duration(max(0.0, now - activity.seconds))}"
        for worker, activity in sorted(state.activities.items())
    ]
