"""The controller's state of a version without a checkpoint: nothing twice, nothing left out."""

from pathlib import Path

import pytest
from recorded_events import a_loss, a_start, make_step, write

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.errors import FreerunError
from freerun.events.events import GroupFinished
from freerun.events.reader import RunReader
from freerun.replay.recorded_state import state_at


def buffered(ordinal: int) -> GroupFinished:
    return GroupFinished(seconds=1.0, ordinal=ordinal, outcome="buffered")


def test_every_ordinal_is_done_or_starts_again(tmp_path: Path) -> None:
    # Step n trains on the groups 2n and 2n + 1. 0 was filtered, 1 failed, 7 was waiting after step 2, 8 and 9 are
    # finished only after it; 6 was still being sampled.
    write(
        tmp_path, a_start(), a_loss(0), a_loss(1, "failed"), *map(buffered, (2, 3)), make_step(1),
        *map(buffered, (4, 5, 7)), make_step(2), *map(buffered, (6, 8, 9)), make_step(3),
    )  # fmt: skip
    with RunReader(tmp_path) as reader:
        state = state_at(reader, 2, data_fingerprint="data")
    assert state.version == 2
    assert state.cursor == 8
    assert state.buffer.to_restart == (6, 7)
    assert state.buffer.ready == ()
    assert (state.buffer.done.mark, state.buffer.done.above) == (6, ())
    assert state.buffer.totals == {"filtered": 1, "failed": 1, "trained": 4}
    assert state.seconds == 4.0
    assert state.data_fingerprint == "data"


def test_a_buffer_goes_on_from_it_and_refuses_what_was_trained_on(tmp_path: Path) -> None:
    write(tmp_path, a_start(), *map(buffered, (2, 3, 5)), make_step(1))
    with RunReader(tmp_path) as reader:
        state = state_at(reader, 1, data_fingerprint="data")
    assert state.buffer.to_restart == (0, 1, 4, 5)
    buffer = TrajectoryBuffer(groups_per_batch=2, max_staleness=2, policy="wait", filter_zero_variance=False)
    buffer.restore(state.buffer)
    assert buffer.version == 1
    buffer.start(0, 1)
    with pytest.raises(ValueError, match="group 2 was started before"):
        buffer.start(2, 1)


def test_a_prompt_that_was_requeued_starts_again(tmp_path: Path) -> None:
    write(tmp_path, a_start(), a_loss(0, "requeued"), a_loss(1, "passed_over"), make_step(1))
    with RunReader(tmp_path) as reader:
        state = state_at(reader, 1, data_fingerprint="data")
    assert state.buffer.to_restart == (0,)


def test_a_step_that_was_not_recorded_has_no_state(tmp_path: Path) -> None:
    write(tmp_path, a_start(), make_step(1))
    with RunReader(tmp_path) as reader, pytest.raises(FreerunError, match="has no step 7"):
        state_at(reader, 7, data_fingerprint="data")
