"""The settings with which a run's steps were trained and its groups sampled: a resumed run may have changed them.

A step belongs to the session that trained it, a group to the session in which it was finished: groups that wait
in a checkpoint were sampled by the session before.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from freerun.config.load import dump_toml, load_recipe, recipe_of_toml
from freerun.config.recipe import Recipe
from freerun.events.events import GroupFinished, RunStarted
from freerun.events.reader import RunReader
from freerun.events.session_rows import SessionRow, recorded_sessions, session_of_step
from freerun.session.run_directory import RunDirectory


class RunSettings:
    """config.toml, and the recorded settings of each session."""

    def __init__(self, config: Recipe, sessions: Sequence[SessionRow]) -> None:
        self.config = config
        self._sessions = sessions
        self._recipes: dict[SessionRow | None, Recipe] = {}

    @classmethod
    def read(cls, run: RunDirectory, reader: RunReader) -> "RunSettings":
        return cls(load_recipe(run.config, []), recorded_sessions(reader))

    @property
    def first_steps(self) -> set[int]:
        """The first step of each session: settings can only change there."""
        return {session.start_version + 1 for session in self._sessions}

    def of_step(self, version: int, overrides: Sequence[str] = ()) -> Recipe:
        """The recipe of the step to `version`, with the overrides."""
        recipe = self._of(session_of_step(self._sessions, version))
        if not overrides:
            return recipe
        where = f"the settings of the session of step {version}"
        return recipe_of_toml(dump_toml(recipe), overrides, where=where)

    def of_group(self, ordinal: int, started: Mapping[int, int], *, version: int) -> Recipe:
        """The recipe that sampled and graded a group, by `group_sessions`; else that of the step that used it."""
        start = started.get(ordinal)
        found = [session for session in self._sessions if session.start_version == start]
        return self._of(found[-1]) if found else self.of_step(version)

    def _of(self, session: SessionRow | None) -> Recipe:
        """The session's recipe, with model and data where config.toml says they are."""
        if session not in self._recipes:
            recorded = self.config
            if session is not None:
                where = f"the settings of the session that began with version {session.start_version}"
                recorded = recipe_of_toml(session.settings, where=where)
            config = self.config
            self._recipes[session] = dataclasses.replace(
                recorded, run=config.run, model=config.model, data=config.data, sft=config.sft
            )
        return self._recipes[session]


def group_sessions(reader: RunReader) -> dict[int, int]:
    """By ordinal, the first version of the session in which the group was finished."""
    found: dict[int, int] = {}
    start = 0
    for event in reader.events("run_started", "group_finished"):
        if isinstance(event, RunStarted):
            start = event.version
        elif isinstance(event, GroupFinished):
            found[event.ordinal] = start
    return found
