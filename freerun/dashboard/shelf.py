"""The runs that a page may show: by name, from one directory, opened on request.

A name from a request is only compared with the names of existing runs, never made into a path. A link that
leads out of the directory is not a run.
"""

from pathlib import Path

from freerun.dashboard.source import Source, runs_inside
from freerun.errors import FreerunError
from freerun.events.schema import STORE_NAME

MAX_OPEN = 8
"""Limit on runs kept open; the least recently requested one is closed first."""


class NoSuchRunError(FreerunError):
    """A request named a run that does not exist."""


class RunShelf:
    """The sources of the runs in `directory`; `run` is shown if no name is given. Used by one thread."""

    def __init__(self, directory: Path, run: Path | None = None) -> None:
        self._directory = directory.resolve()
        self._run = run.resolve() if run is not None else None
        self._open: dict[Path, Source] = {}

    def find(self, name: str = "") -> Source:
        """The source of the named run; without a name, of the page's own run or the newest one."""
        path = self._find(name)
        source = self._open.pop(path, None) or Source(path, self._directory)
        self._open[path] = source  # the last entry is the most recently used one
        while len(self._open) > MAX_OPEN:
            self._open.pop(next(iter(self._open))).close()
        return source

    def path_of(self, name: str = "") -> Path:
        """The directory of the named run."""
        return self._find(name)

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()

    def _find(self, name: str) -> Path:
        if self._run is not None and name in ("", self._run.name):
            return self._run
        runs = runs_inside(self._directory)
        if not name and runs:
            return max(runs.values(), key=lambda path: (path / STORE_NAME).stat().st_mtime)
        if name not in runs:
            raise NoSuchRunError(f'there is no run "{name}" here' if name else "there is no run here yet")
        return runs[name]
