"""The roster of a pool: which rollout workers are ready, without a place, joining or retiring; it starts them."""

from collections.abc import Awaitable, Callable, Iterator

import msgspec

from freerun.errors import WorkerError
from freerun.processes.link import Link
from freerun.processes.patience import awake_clock
from freerun.types import EngineStats
from freerun.workers import messages as m
from freerun.workers.pooled_worker import PooledWorker

Spawn = Callable[[int], Awaitable[Link[m.FromRollout]]]
"""Starts the worker with this index."""


class Roster:
    """The workers of a pool with `num_places` places."""

    def __init__(self, spawn: Spawn, start_message: m.StartEngine, num_places: int) -> None:
        self._spawn = spawn
        self._start_message = start_message
        self._num_places = num_places
        self._workers: list[PooledWorker] = []
        self._joining: set[int] = set()
        """Indices of workers that are about to be started."""
        self._last_placed = awake_clock().time()

        self.serving: list[PooledWorker] = []
        """Workers that are ready and not retiring, by index."""
        self._retiring: list[PooledWorker] = []

    def __iter__(self) -> Iterator[PooledWorker]:
        return iter(self._workers)

    def note_serving(self) -> None:
        """Update `serving` after a worker became ready, is gone, or started or stopped retiring."""
        serving = [worker for worker in self._workers if worker.is_ready and not worker.is_retiring]
        self.serving = sorted(serving, key=lambda worker: worker.index)
        self._retiring = [worker for worker in self._workers if worker.is_retiring]

    @property
    def num_ready(self) -> int:
        return len(self.serving)

    @property
    def num_staying(self) -> int:
        """Number of workers that are not retiring, ready or not."""
        return len(self._joining) + sum(not worker.is_retiring for worker in self._workers)

    @property
    def num_leaving(self) -> int:
        """Number of samples of retiring workers."""
        return sum(worker.num_samples for worker in self._retiring)

    @property
    def is_started(self) -> bool:
        return self.num_ready > 0 and all(w.is_ready or not w.link.is_placed for w in self._workers)

    def reserve(self) -> int | None:
        """Reserve the index of a worker that is about to be started; None if all places are taken."""
        taken = self._joining.union(worker.index for worker in self._workers)
        for index in range(self._num_places):
            if index not in taken:
                self._joining.add(index)
                return index
        return None

    async def launch(self, index: int) -> PooledWorker:
        """Start a worker at a reserved index."""
        worker = PooledWorker(index, await self._spawn(index))
        self._send_start(worker)
        self._joining.discard(index)
        self._workers.append(worker)
        return worker

    async def relaunch(self, worker: PooledWorker) -> None:
        """Start a new process for a worker whose process is gone."""
        worker.link = await self._spawn(worker.index)
        self._send_start(worker)
        worker.note_progress()

    def _send_start(self, worker: PooledWorker) -> None:
        worker.link.send(msgspec.structs.replace(self._start_message, worker_index=worker.index))

    def remove(self, worker: PooledWorker) -> None:
        self._workers.remove(worker)
        self.note_serving()

    def stats(self) -> list[EngineStats]:
        """Statistics of all workers; a retiring one offers no slots."""
        return [
            msgspec.structs.replace(worker.stats, num_slots=0) if worker.is_retiring else worker.stats
            for worker in self._workers
        ]

    def missing(self) -> str:
        """What keeps all workers from generating; empty if nothing does."""
        if self.num_ready or all(worker.link.is_placed for worker in self._workers):
            return ""
        waiting = next(worker for worker in self._workers if not worker.link.is_placed)
        return f"no rollout worker has a place in the cluster: {waiting.link.describe_end()}"

    def require_a_place(self, *, is_needed: bool, patience: float) -> None:
        """Raise if there is work but no worker has had a place for `patience` seconds."""
        now = awake_clock().time()
        if any(worker.link.is_placed for worker in self._workers) or not is_needed:
            self._last_placed = now
        if now - self._last_placed > patience:
            raise WorkerError(f"waited {patience:.0f} s; {self.missing()}")
