"""New weights for an engine: verified and packed on a thread while the engine still decodes with the old ones.

    worker's loop   ─ step v ─ step v ─ step v ─ swap ─ step v + 1 ─
    thread             └─ checksum ─ pack ─┘

The thread only reads the model and the published buffer, which is not overwritten before the swap is confirmed. It
never ends the process: its exception is raised in the loop when it takes the weights.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from freerun.engine.engine import NewWeights
from freerun.types import Publication


class ArrivingWeights:
    """One publication, being prepared."""

    def __init__(self, published: Publication, prepare: Callable[[], NewWeights]) -> None:
        self.published = published
        self._prepared: Future[NewWeights] = Future()
        threading.Thread(target=self._run, args=(prepare,), name="new weights", daemon=True).start()

    def is_done(self, *, timeout_seconds: float) -> bool:
        """Whether `take` would return or raise at once; waits for that up to the timeout."""
        return bool(wait((self._prepared,), timeout=timeout_seconds).done)

    def take(self) -> NewWeights:
        return self._prepared.result()

    def _run(self, prepare: Callable[[], NewWeights]) -> None:
        try:
            self._prepared.set_result(prepare())
        except BaseException as error:  # noqa: BLE001 - the edge of a thread
            self._prepared.set_exception(error)
