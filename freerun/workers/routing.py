"""Chooses the worker for a request and the worker to retire; remembers which worker served a request."""

from collections.abc import Sequence
from operator import attrgetter

from freerun.types import Request
from freerun.workers.pooled_worker import PooledWorker

_load = attrgetter("num_samples", "index")
NUM_SERVED = 1024
"""Number of served requests whose worker is remembered: callers ask right after the answer."""


class ServedRequests:
    """The workers of the most recently served requests."""

    def __init__(self) -> None:
        self._workers: dict[int, str] = {}

    def note(self, request_id: int, worker: str) -> None:
        self._workers[request_id] = worker
        if len(self._workers) > NUM_SERVED:
            del self._workers[next(iter(self._workers))]

    def by(self, request_id: int) -> str:
        """The worker's name; empty if the request was served too long ago."""
        return self._workers.get(request_id, "")


def choose_worker(able: Sequence[PooledWorker], request: Request, *, num_slots: int) -> PooledWorker:
    """The least loaded ready worker, or one that may have the prompt or session cached and is not far behind."""
    if request.session is None:
        homes = [worker for worker in able if request.ordinal in worker.num_of_prompt and worker.is_ready]
    else:
        homes = [worker for worker in able if request.session in worker.sessions and worker.is_ready]
    home = min(homes, key=_load, default=None)
    if home is not None and home.num_samples <= num_slots:
        return home  # no other worker can be that much less loaded
    ready = [worker for worker in able if worker.is_ready]
    if not ready:
        return min(able, key=lambda worker: (not worker.link.is_placed, worker.num_samples, worker.index))
    least = min(ready, key=_load)
    if home is None:
        return least
    # The cache saves less time than a request would lose by waiting one batch longer than elsewhere.
    is_behind = home.num_samples - least.num_samples > num_slots
    return least if is_behind else home


def choose_to_retire(workers: Sequence[PooledWorker]) -> PooledWorker | None:
    """The worker with the least to finish; None unless another one that stays is ready."""
    # A worker that has just died is about to be replaced.
    alive = [worker for worker in workers if not worker.is_retiring and worker.link.is_alive]
    chosen = min(alive, key=lambda w: (w.link.is_placed, w.is_ready, w.num_samples, -w.index), default=None)
    return chosen if any(worker.is_ready for worker in alive if worker is not chosen) else None
