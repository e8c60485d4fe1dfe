"""Counts consecutive groups that yield nothing to train on; too many end the run with the reason."""

import traceback

from freerun.errors import FreerunError, RolloutError

MAX_BATCHES_FILTERED = 20
"""The run gives up when dynamic sampling has filtered this many batches' worth of groups in a row."""


class Setbacks:
    """Counts consecutive failed groups and consecutive filtered ones."""

    def __init__(self, *, max_failures: int, groups_per_batch: int) -> None:
        self._max_failures = max_failures
        self._max_filtered = MAX_BATCHES_FILTERED * groups_per_batch
        self._num_failures = 0
        self._num_filtered = 0

    def note_finished(self, *, is_filtered: bool) -> None:
        """Reset the counts; a filtered group, whose rewards are all equal, is counted instead."""
        self._num_failures = 0
        self._num_filtered = self._num_filtered + 1 if is_filtered else 0
        if self._num_filtered >= self._max_filtered:
            raise RolloutError(
                f"the rewards of {self._num_filtered} groups in a row were all equal, so nothing is "
                "left to train on: the task is solved, or too hard; change the data, or set "
                "objective.dynamic_sampling = false"
            )

    def note_failure(self, key: str, error: Exception) -> None:
        self._num_failures += 1
        if self._num_failures >= self._max_failures:
            detail = str(error) if isinstance(error, FreerunError) else "".join(traceback.format_exception(error))
            last = detail.removeprefix(f"{key}: ")  # most errors of a rollout begin with its prompt
            raise RolloutError(f"{self._max_failures} rollouts in a row failed; the last, of {key}: {last}")
