"""Early stopping, if configured: at a target accuracy, or when held-out accuracy stops rising.

It uses only the accuracy of each evaluated version. Evaluations of earlier sessions count too.
"""

import math
from collections.abc import Iterable

from freerun.config.recipe import EvalConfig
from freerun.events.accuracy import percent
from freerun.events.events import EvalRow


class EarlyStop:
    """Call `note` with each evaluation; `reason` says why the run should end; empty if it should continue."""

    def __init__(self, config: EvalConfig, evals: Iterable[EvalRow] = ()) -> None:
        self._config = config
        self._accuracies: dict[int, float] = {}
        for row in evals:
            self.note(row)

    def note(self, row: EvalRow) -> None:
        if math.isfinite(row.accuracy):
            self._accuracies[row.version] = row.accuracy

    @property
    def reason(self) -> str:
        if not self._accuracies:
            return ""
        newest, target, patience = max(self._accuracies), self._config.target_accuracy, self._config.stop_after
        accuracy = self._accuracies[newest]
        if 0 < target <= accuracy:
            return f"held-out accuracy {percent(accuracy)} at version {newest} reached eval.target_accuracy"
        best = max(self._accuracies, key=lambda version: (self._accuracies[version], -version))
        num_since = sum(version > best for version in self._accuracies)
        if 0 < patience <= num_since:
            since = f"{num_since} evaluation{'s' if num_since > 1 else ''}"
            return (
                f"{since} without a higher held-out accuracy than {percent(self._accuracies[best])} at version "
                f"{best} (eval.stop_after)"
            )
        return ""
