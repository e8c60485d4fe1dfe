"""Removes runs: only whole runs, only from their directory, and none that a process uses.

Everything is checked before anything is removed. Links are never followed: a run that is a link is refused, and
of a link inside a run only the link itself is removed.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freerun.errors import FreerunError
from freerun.events.run_files import disk_bytes
from freerun.events.schema import STORE_NAME
from freerun.session.run_directory import CONFIG_FILE
from freerun.session.run_lock import locked


@dataclass(frozen=True)
class RemovableRun:
    """A run that may be removed, and the space this frees."""

    path: Path
    num_bytes: int


def find_removable(directory: Path, names: Sequence[str]) -> list[RemovableRun]:
    """The runs with these names in `directory`; raises for the first one that is not a run or is in use."""
    runs = []
    for name in dict.fromkeys(names):
        path = _check_name(directory, name)
        with locked(path):
            runs.append(RemovableRun(path, disk_bytes(path)))
    return runs


def remove_run(run: RemovableRun) -> None:
    """Remove the run, unless a process has started to use it since."""
    with locked(run.path):
        try:
            shutil.rmtree(run.path)
        except OSError as error:
            raise FreerunError(
                f'"{run.path}" could not be removed completely ({error.strerror or error}); '
                "remove what is left of it yourself"
            ) from error


def _check_name(directory: Path, name: str) -> Path:
    if not name or name in (".", "..") or "/" in name:
        raise FreerunError(f'"{name}" is not the name of a run; name one as "freerun runs" lists it')
    path = directory / name
    if path.is_symlink():
        raise FreerunError(f'"{path}" is a link; remove the link, or the run that it leads to, yourself')
    if not path.is_dir():
        raise FreerunError(f'there is no run "{path}"; "freerun runs {directory}" lists them')
    if not (path / CONFIG_FILE).is_file() and not (path / STORE_NAME).is_file():
        raise FreerunError(f'"{path}" is not a run (neither {CONFIG_FILE} nor {STORE_NAME}); it is left alone')
    return path
