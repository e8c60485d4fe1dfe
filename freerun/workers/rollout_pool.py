"""The generator the controller sees: N rollout workers behind one `generate` and one `load`.

- Routing: a group goes, whole, to the worker with the fewest samples under way.
- Requests made in the same turn of the event loop reach a worker in one message, so that what an engine
  batches together does not depend on timing (in synchronous mode runs are bitwise repeatable).
- On a cluster a worker may wait for a place. Nobody waits for it: the run starts and goes on with the others, and
  it is welcomed when it comes, with the newest weights first.
- A worker that dies or falls silent is replaced; its requests are sent again, from the start, to whoever
  is least loaded. Sampling is counter-based, so they get the same random numbers.
- A pinned version is kept by every worker. One that is replaced has it again only while it is the newest; if
  no worker has it any more, requests for it fail with `PinLostError`: they are never served by another version.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from freerun.config.runtime import RuntimeConfig
from freerun.errors import PinLostError, RolloutError, WorkerError
from freerun.processes.link import Link
from freerun.processes.patience import awake_clock, within
from freerun.types import Completion, EngineStats, Publication, Request
from freerun.workers.messages import (
    Abort,
    EngineReady,
    Finished,
    FromRollout,
    Generate,
    Load,
    Loaded,
    Pin,
    Refused,
    Report,
    StartEngine,
    Unpin,
)
from freerun.workers.pooled_worker import PooledWorker

Spawn = Callable[[int], Awaitable[Link[FromRollout]]]
"""Starts the worker of this index."""

WATCH_SECONDS = 1.0


class RolloutPool:
    """Starts, feeds, watches and replaces the rollout workers; implements `protocols.VersionedGenerator`."""

    def __init__(
        self,
        *,
        spawn: Spawn,
        start_message: StartEngine,
        num_workers: int,
        config: RuntimeConfig,
        on_report: Callable[[str, EngineStats], None],
        on_death: Callable[[str, str, bool], None],
        on_busy: Callable[[str, bool], None] = lambda worker, is_busy: None,
    ) -> None:
        self._spawn = spawn
        self._start_message = start_message
        self._num_workers = num_workers
        self._config = config
        self._num_restarts_left = config.max_worker_restarts
        self._on_report = on_report
        self._on_death = on_death
        self._on_busy = on_busy
        """Told when a worker gets something to do, and when it has answered its last request and load."""
        self._workers: list[PooledWorker] = []
        self._waiting: dict[int, asyncio.Future[tuple[Completion, ...]]] = {}
        self._published: Publication | None = None
        self._pinned_version = -1
        self._has_started = False
        self._last_placed = awake_clock().time()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start all workers; returns when each has its model, those that have no place in the cluster excepted."""
        for index in range(self._num_workers):
            worker = PooledWorker(index, await self._spawn(index))
            self._send_start(worker)
            self._workers.append(worker)
            self._tasks.append(asyncio.create_task(self._serve(worker)))
        self._tasks.append(asyncio.create_task(self._watch()))
        # How long a worker may take is for `_watch` to say: its time begins when it has a place.
        await self._raced(self._until(self._is_started), math.inf, "the rollout workers to start")
        self._has_started = True

    async def wait_for_loss(self) -> None:
        """Never returns; raises when a worker is lost that cannot be replaced."""
        await asyncio.shield(self._failure)

    def _is_started(self) -> bool:
        return self.num_ready > 0 and all(w.is_ready or not w.link.is_placed for w in self._workers)

    @property
    def num_ready(self) -> int:
        return sum(worker.is_ready for worker in self._workers)

    def missing(self) -> str:
        if self.num_ready or all(worker.link.is_placed for worker in self._workers):
            return ""
        waiting = next(worker for worker in self._workers if not worker.link.is_placed)
        return f"no rollout worker has a place in the cluster: {waiting.link.describe_end()}"

    def stats(self) -> Sequence[EngineStats]:
        return [worker.stats for worker in self._workers]

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        """All samples of the request; cancelling the call aborts it in the engine."""
        finished: asyncio.Future[tuple[Completion, ...]] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = finished
        self._dispatch(request)
        try:
            return await finished
        finally:
            self._waiting.pop(request.request_id, None)
            for worker in self._workers:
                if worker.requests.pop(request.request_id, None) is not None:
                    worker.link.send(Abort(request_ids=(request.request_id,)))
                    self._note_busy(worker)

    async def load(self, published: Publication) -> None:
        """Send the weights to every worker and wait until each has confirmed version and checksum.

        A worker that is not ready has been sent no weights, so there is no buffer it could be reading: it is not
        waited for, and gets the newest when it is. So every worker that was ever sent a version is ready, and has
        confirmed this one, or is gone, when this returns: the contract of `weights/shared.py`. One confirms it in
        any case, for a version that nobody has loaded cannot be generated with.
        """
        self._published = published
        for worker in self._workers:
            if worker.is_ready:
                worker.link.send(Load(published=published))
                self._note_busy(worker)
        self._relieve_unplaced()  # of requests for a version that they will now never have

        def is_loaded() -> bool:
            return self._is_loaded(published.version)

        # An engine that holds one version (vLLM's) loads only when the evaluation of that version is over. The
        # evaluation may take its time: if its samples make no progress, `_watch` notices.
        await self._raced(self._until(lambda: is_loaded() or self._pinned_version < 0), math.inf, "the evaluation")
        confirmed = self._until(is_loaded)
        what = f"the rollout workers to load version {published.version}"
        await self._raced(confirmed, self._config.start_seconds + self._config.stall_seconds, what)

    def _is_loaded(self, version: int) -> bool:
        ready = [worker for worker in self._workers if worker.is_ready]
        return bool(ready) and all(worker.loaded_version >= version for worker in ready)

    def pin(self, version: int) -> PinnedVersion:
        """Keep `version`, the one loaded last, in every worker, for requests made through what is returned."""
        assert self._pinned_version < 0, f"version {self._pinned_version} is still pinned"
        self._pinned_version = version
        for worker in self._workers:
            if worker.is_ready:
                self._send_pin(worker)
        return PinnedVersion(self, version)

    def unpin(self) -> None:
        """Let go of the pinned version, if there is one."""
        self._pinned_version = -1
        self._changed.set()
        for worker in self._workers:
            if worker.pinned_version >= 0:
                worker.pinned_version = -1
                worker.link.send(Unpin())

    async def close(self) -> None:
        """End all workers; returns when no process is left."""
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.link.kill()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.link.wait(timeout_seconds=10) for worker in self._workers))
        if self._failure.done():
            self._failure.exception()  # seen, or asyncio complains about it at exit

    def _dispatch(self, request: Request) -> None:
        able = [worker for worker in self._workers if self._can_serve(worker, request)]
        if not able:
            self._fail(request.request_id, _pin_lost(request))
            return
        worker = min(able, key=lambda w: (not w.is_ready, not w.link.is_placed, w.num_samples, w.index))
        worker.requests[request.request_id] = request
        self._note_busy(worker)
        if worker.is_ready:
            if not worker.unsent:
                asyncio.get_running_loop().call_soon(self._send, worker)
            worker.unsent.append(request)

    def _can_serve(self, worker: PooledWorker, request: Request) -> bool:
        """Whether the worker has the version that the request is pinned to, or will have it when it is ready."""
        if request.pinned_version < 0 or request.pinned_version == worker.pinned_version:
            return True
        is_newest = self._published is not None and request.pinned_version == self._published.version
        return not worker.is_ready and is_newest and request.pinned_version == self._pinned_version

    def _fail(self, request_id: int, error: RolloutError) -> None:
        if (waiting := self._waiting.get(request_id)) is not None and not waiting.done():
            waiting.set_exception(error)

    def _send_start(self, worker: PooledWorker) -> None:
        worker.link.send(msgspec.structs.replace(self._start_message, worker_index=worker.index))

    def _send_pin(self, worker: PooledWorker) -> None:
        worker.pinned_version = self._pinned_version
        worker.link.send(Pin(version=self._pinned_version))

    def _send(self, worker: PooledWorker) -> None:
        """Send the requests of this turn of the event loop in one message."""
        requests = tuple(request for request in worker.unsent if request.request_id in worker.requests)
        worker.unsent = []
        if not requests or not worker.is_ready:
            return
        try:
            worker.link.send(Generate(requests=requests))
        except Exception as error:  # noqa: BLE001 - nobody awaits this callback: tell who waits
            for request in requests:
                del worker.requests[request.request_id]
                self._fail(request.request_id, RolloutError(f"the request cannot be sent: {error!r}"))
            self._note_busy(worker)

    async def _serve(self, worker: PooledWorker) -> None:
        """Take in one worker's messages for as long as it can be kept alive."""
        try:
            while True:
                message = await worker.link.receive()
                if message is None:
                    await self._replace(worker)
                else:
                    self._take_in(worker, message)
        except (WorkerError, OSError) as error:  # OSError: the machine has no room for another process
            self._give_up(WorkerError(f"{worker.name} is lost: {error}"))
        except Exception as error:  # noqa: BLE001 - ours: without this task the run would wait for ever
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _take_in(self, worker: PooledWorker, message: FromRollout) -> None:
        worker.note_progress()
        match message:
            case Finished(request_id=request_id, completions=completions):
                worker.requests.pop(request_id, None)
                if (waiting := self._waiting.get(request_id)) is not None and not waiting.done():
                    waiting.set_result(completions)
            case Refused(request_id=request_id, reason=reason):
                worker.requests.pop(request_id, None)
                self._fail(request_id, RolloutError(reason))
            case Loaded(published=published):
                worker.loaded_version = published.version
                self._changed.set()
            case Report(stats=stats):
                worker.stats = stats
                self._on_report(worker.name, stats)
            case EngineReady():
                self._welcome(worker)
        self._note_busy(worker)

    def _note_busy(self, worker: PooledWorker) -> None:
        is_loading = self._published is not None and worker.loaded_version < self._published.version
        is_busy = bool(worker.requests) or is_loading or not worker.is_ready
        if is_busy != worker.is_busy:
            worker.is_busy = is_busy
            self._on_busy(worker.name, is_busy)

    def _welcome(self, worker: PooledWorker) -> None:
        """Give a new process the newest weights, then the requests that are its own."""
        worker.is_ready = True
        if self._published is not None:
            worker.link.send(Load(published=self._published))
            if self._published.version == self._pinned_version:
                self._send_pin(worker)
        for request in [r for r in worker.requests.values() if not self._can_serve(worker, r)]:
            del worker.requests[request.request_id]
            self._dispatch(request)
        if worker.requests:
            worker.link.send(Generate(requests=tuple(worker.requests.values())))
        self._relieve_unplaced()
        self._changed.set()

    def _relieve_unplaced(self) -> None:
        """Send on the requests that workers without a place hold since there was nobody else to take them."""
        for worker in self._workers:
            if worker.requests and not worker.link.is_placed:
                held, worker.requests = list(worker.requests.values()), {}
                for request in held:
                    self._dispatch(request)

    async def _replace(self, worker: PooledWorker) -> None:
        """Start another process in place of one that is gone, and send its requests again."""
        await worker.link.wait(timeout_seconds=5)  # its socket is closed: let it end by itself, to hear how
        worker.link.kill()
        reason = worker.link.describe_end()
        # One that ends by itself before it is ready would do so again; one that was taken away would not.
        could_start = worker.is_ready or worker.link.was_taken_away
        is_restarted = self._num_restarts_left > 0 and could_start
        self._on_death(worker.name, reason, is_restarted)
        if not is_restarted:
            why = "no restarts are left" if could_start else "it never became ready"
            raise WorkerError(f"{why}: {reason}")
        self._num_restarts_left -= 1
        orphans = list(worker.requests.values())
        worker.forget_process()
        self._note_busy(worker)
        worker.link = await self._spawn(worker.index)
        self._send_start(worker)
        worker.note_progress()
        for request in orphans:
            if request.request_id in self._waiting:  # nobody has given it up meanwhile
                self._dispatch(request)

    async def _watch(self) -> None:
        """Kill what is silent, or makes no progress while it has work; `_serve` sees the end and replaces it."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            for worker in self._workers:
                if worker.is_lost(self._config):
                    worker.link.kill()
            self._require_a_place(awake_clock().time())
            self._changed.set()  # places are found, and lost, without a message

    def _require_a_place(self, now: float) -> None:
        """Give up when for long no worker has had a place while there was something to do."""
        if any(worker.link.is_placed for worker in self._workers) or (self._has_started and not self._waiting):
            self._last_placed = now
        patience = self._config.stall_seconds if self._has_started else self._config.start_seconds
        if now - self._last_placed > patience:
            self._give_up(WorkerError(f"waited {patience:.0f} s; {self.missing()}"))

    async def _until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            self._changed.clear()
            await self._changed.wait()

    async def _raced(self, wait: Awaitable[None], timeout_seconds: float, what: str) -> None:
        """Wait, but not longer than `timeout_seconds`, and not when a worker is lost for good."""
        waiting = asyncio.ensure_future(wait)
        try:
            either: set[asyncio.Future[None]] = {waiting, self._failure}
            done, _ = await within(
                timeout_seconds, lambda: asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            )
            for future in done:
                await future
        except TimeoutError:
            where = self.missing() or "their logs are in the run directory"
            raise WorkerError(f"waited {timeout_seconds:.0f} s for {what}; {where}") from None
        finally:
            waiting.cancel()


class PinnedVersion:
    """The pool at one version: implements `protocols.PinnedGenerator`."""

    def __init__(self, pool: RolloutPool, version: int) -> None:
        self._pool = pool
        self._version = version

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        return await self._pool.generate(msgspec.structs.replace(request, pinned_version=self._version))

    def release(self) -> None:
        self._pool.unpin()


def _pin_lost(request: Request) -> PinLostError:
    return PinLostError(
        f"version {request.pinned_version} is gone: the worker that kept it died, and newer weights have arrived"
    )
