"""Which checkpoints are kept besides the newest: the best evaluated one, and those being evaluated.

An evaluation may end long after the checkpoint of its version was written. Until then the checkpoint must be
kept because it may be the best. Evaluations are in the store, on disk, before any checkpoint is removed, so a
resumed run knows its best version.
"""

from collections.abc import Iterable
from pathlib import Path

from freerun.config.recipe import EvalConfig
from freerun.events.best import best_eval
from freerun.events.events import AnyEvent, EvalFinished, EvalRow, EvalSkipped
from freerun.events.reader import RunReader
from freerun.events.run_files import saved_versions


class KeptVersions:
    """Tracks the evaluations of a run and determines the versions that must be kept for them."""

    def __init__(
        self,
        config: EvalConfig,
        checkpoints: Path,
        *,
        evals: Iterable[EvalRow] = (),
        version: int = 0,
        is_on: bool = True,
    ) -> None:
        """`version` is the run's first version, which is evaluated first."""
        self._config = config
        self._is_on = is_on
        self._checkpoints = checkpoints
        self._evals = {row.version: row for row in evals}
        self._pending: set[int] = set()
        self.expect(version)

    def expect(self, version: int) -> None:
        """Note that a version has or will have a checkpoint; if evaluated, keep it until the result is known."""
        if self._config.is_due(version):
            self._pending.add(version)

    def __call__(self, event: AnyEvent) -> None:
        match event:
            case EvalFinished():
                self._evals[event.version] = event
                # Evaluations start in the order of versions: an older one without a result by now will get none.
                self._pending = {version for version in self._pending if version > event.version}
            case EvalSkipped():
                self._pending.discard(event.version)

    def end(self) -> None:
        """Stop expecting evaluations."""
        self._pending.clear()

    def protected(self) -> frozenset[int]:
        """Versions whose checkpoints must not be removed."""
        if not self._is_on:
            return frozenset()
        best = best_eval(self._evals.values(), kept=saved_versions(self._checkpoints))
        return frozenset(self._pending | ({best.version} if best else set()))


def past_evals(run: Path) -> list[EvalRow]:
    """The evaluations of a run's earlier sessions."""
    with RunReader(run) as reader:
        return reader.evals()
