"""The trackers of a run: their processes start after the run's store is opened, and end before it is closed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.errors import FreerunError
from freerun.session.listeners import Listeners
from freerun.trackers.launching import Reporters
from freerun.trackers.reporting import ReportOptions


@contextlib.contextmanager
def open_reporters(recipe: Recipe, directory: Path, listeners: Listeners) -> Iterator[None]:
    """Report the run to `report.to` while the context is open; a reporter that fails becomes a notice."""
    report = recipe.report
    if not report.to:
        yield
        return
    options = ReportOptions(project=report.project, samples_every=report.samples_every)
    reporters = Reporters(directory, report.to, options)
    listeners.watch(reporters.failures)
    try:
        yield
    finally:
        with contextlib.suppress(FreerunError):  # a store that cannot write ends the run with its own error
            listeners.flush()
        reporters.finish(listeners.say, wait_seconds=report.wait_seconds)
