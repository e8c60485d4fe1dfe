"""What each session of a run ran with: a resumed run may have changed its settings, a fork comes from another run.

A step belongs to the newest session that started below its version: a session that was resumed from an earlier
version has overtaken what the one before made after it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from freerun.events.reader import RunReader


class SessionRow(NamedTuple):
    start_version: int
    settings: str
    """A recipe as TOML."""
    origin: str


def recorded_sessions(reader: RunReader) -> list[SessionRow]:
    """The sessions in order, without those that ended before they began."""
    query = "SELECT start_version, settings, origin FROM sessions WHERE settings != '' ORDER BY session"
    return [SessionRow._make(row) for row in reader.plain_rows(query)]


def session_of_step(sessions: Sequence[SessionRow], version: int) -> SessionRow | None:
    """The session that trained the step to `version`; None if it was not recorded."""
    return next((session for session in reversed(sessions) if session.start_version < version), None)
