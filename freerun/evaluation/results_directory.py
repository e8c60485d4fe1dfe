"""A directory for results, which is removed again if there are none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freerun.errors import FreerunError


@contextmanager
def results_directory(directory: Path) -> Iterator[None]:
    """Make a private directory for the block; undo it if the block fails or is interrupted."""
    try:
        if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
            raise FreerunError(f'"{directory}" exists; name another output directory')
        made = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(mode=0o700, parents=True, exist_ok=directory not in made)
    except OSError as error:
        raise FreerunError(
            f'"{directory}" cannot be made ({error.strerror or error}); name another output directory'
        ) from error
    try:
        yield
    except BaseException:
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        _remove_empty(made)
        raise


def _remove_empty(directories: list[Path]) -> None:
    """Remove empty directories, innermost first; a directory that is in use stays, and so do its parents."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return
