"""Rebuilds the controller's state at a version without a checkpoint, from the store.

Done are the ordinals that were trained on up to that version, and those given up before it. Every other ordinal
seen by then is started again: groups that waited in the buffer are sampled again. So no prompt is trained on
twice, and none is left out. Which prompts the curriculum rested is not recorded: none rests.
"""

from collections import Counter

from freerun.buffer.groups import BufferState, Ledger
from freerun.controller.checkpoint import ControllerState
from freerun.errors import FreerunError
from freerun.events.events import GroupFinished, StepFinished
from freerun.events.reader import RunReader

GIVEN_UP = ("filtered", "failed", "dropped", "passed_over", "unrated")
"""Outcomes after which an ordinal is done without having been trained on."""


def state_at(reader: RunReader, version: int, *, data_fingerprint: str) -> ControllerState:
    """The state after the step to `version`."""
    step = reader.step(version)
    if step is None:
        raise FreerunError(f"the store {reader.file} has no step {version}")
    query = "SELECT DISTINCT ordinal FROM trajectories WHERE version <= :version"
    trained = {ordinal for [ordinal] in reader.plain_rows(query, version=version)}
    outcomes = _outcomes_before(reader, version)
    done = trained | {ordinal for ordinal, outcome in outcomes if outcome in GIVEN_UP}
    cursor = 1 + max(done.union(ordinal for ordinal, _ in outcomes), default=-1)
    ledger = Ledger()
    for ordinal in sorted(done):
        ledger.add(ordinal)
    totals = Counter(outcome for _, outcome in outcomes if outcome != "buffered")
    return ControllerState(
        version=version,
        cursor=cursor,
        buffer=BufferState(
            version=version,
            ready=(),
            to_restart=tuple(sorted(set(range(cursor)) - done)),
            done=ledger.state(),
            totals=dict(totals) | {"trained": len(trained)},
        ),
        seconds=step.seconds,
        data_fingerprint=data_fingerprint,
    )


def _outcomes_before(reader: RunReader, version: int) -> list[tuple[int, str]]:
    """The groups that had left the rollout stage when the step to `version` ended."""
    found: list[tuple[int, str]] = []
    for event in reader.events("group_finished", "step_finished"):
        if isinstance(event, GroupFinished):
            found.append((event.ordinal, event.outcome))
        elif isinstance(event, StepFinished) and event.result.version == version:
            break
    return found
