"""The settings of each session of a run: a resumed run may have changed them, and a fork comes from another run.

A step belongs to the newest session that started below its version: a session resumed from an earlier version
replaces the later steps of the session before it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from freerun.events.reader import RunReader


class SessionRow(NamedTuple):
    start_version: int
    settings: str
    """The recipe as TOML."""
    origin: str


def recorded_sessions(reader: RunReader) -> list[SessionRow]:
    """The sessions in order, without those that ended before they started."""
    query = "SELECT start_version, settings, origin FROM sessions WHERE settings != '' ORDER BY session"
    return [SessionRow._make(row) for row in reader.plain_rows(query)]


def session_of_step(sessions: Sequence[SessionRow], version: int) -> SessionRow | None:
    """The session that trained the step to `version`; None if it was not recorded."""
    return next((session for session in reversed(sessions) if session.start_version < version), None)
