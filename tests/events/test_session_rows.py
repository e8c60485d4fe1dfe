"""The settings of each session are in the store, and a step knows its session."""

from pathlib import Path

import msgspec
from recorded_events import a_start, make_step, write

from freerun.events.events import RunStarted
from freerun.events.reader import RunReader
from freerun.events.session_rows import SessionRow, recorded_sessions, session_of_step
from freerun.events.store import Store
from freerun.events.store_copy import copy_store


def started(version: int, settings: str, origin: str = "") -> RunStarted:
    return msgspec.structs.replace(a_start(version), settings=settings, origin=origin)


def test_settings_and_origin_are_kept_with_the_session_and_not_with_the_event(tmp_path: Path) -> None:
    write(tmp_path, started(0, "first"), make_step(1))
    write(tmp_path, started(1, "second", origin="forked from a"), make_step(2))
    with RunReader(tmp_path) as reader:
        assert recorded_sessions(reader) == [SessionRow(0, "first", ""), SessionRow(1, "second", "forked from a")]
        starts = [event for event in reader.events("run_started") if isinstance(event, RunStarted)]
    assert [event.settings for event in starts] == ["", ""]
    assert [event.origin for event in starts] == ["", "forked from a"]


def test_a_session_that_ended_before_it_began_has_no_settings(tmp_path: Path) -> None:
    write(tmp_path, started(0, "first"), make_step(1))
    Store(tmp_path).close()
    with RunReader(tmp_path) as reader:
        assert recorded_sessions(reader) == [SessionRow(0, "first", "")]


def test_a_step_belongs_to_the_newest_session_that_started_below_it() -> None:
    # The second was resumed from version 3, which undid what the first had made after it; so did the third.
    sessions = [SessionRow(0, "first", ""), SessionRow(3, "second", ""), SessionRow(3, "third", "")]
    owners = [session_of_step(sessions, version) for version in (1, 3, 4, 9)]
    assert [owner.settings for owner in owners if owner] == ["first", "first", "third", "third"]
    assert session_of_step([], 1) is None


def test_a_copy_of_a_store_ends_where_it_is_asked_to_and_nobody_writes_it(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with Store(tmp_path / "run") as store:  # still being written
        store(started(0, "first"))
        for version in range(1, 6):
            store(make_step(version))
        store.flush()
        copy_store(tmp_path / "run", tmp_path / "copy", version=3, seconds=6.0)
    with RunReader(tmp_path / "copy") as copied, RunReader(tmp_path / "run") as whole:
        copied.verify()
        assert [step.version for step in copied.steps()] == [1, 2, 3]
        assert copied.trained_groups() == [group for group in whole.trained_groups() if group[0] <= 3]
        assert copied.status().state == "interrupted"
        assert recorded_sessions(copied) == [SessionRow(0, "first", "")]
        assert [step.version for step in whole.steps()] == [1, 2, 3, 4, 5]
    with Store(tmp_path / "copy") as store:
        store(make_step(4))
    with RunReader(tmp_path / "copy") as copied:
        assert [step.version for step in copied.steps()] == [1, 2, 3, 4]
