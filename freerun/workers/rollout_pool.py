"""The generator the controller sees: N rollout workers behind one `generate` and one `load`.

- Routing: a request goes to the worker with the fewest running samples. The samples of a prompt, each a request,
  go to one worker, which computes the prompt once. A later turn of a session goes to a worker that served the
  session before and may have its cache parked. Neither rule applies to a worker that is a whole batch of samples
  behind the others.
- Requests made in one iteration of the event loop reach a worker in one message. What an engine batches together
  then does not depend on timing, and synchronous runs are bitwise repeatable.
- On a cluster a worker may have to wait for a place. The run starts with the others; a late worker first gets the
  newest weights.
- A worker that dies or falls silent is replaced. Its requests start again on the least loaded worker. Sampling is
  counter-based, so they get the same random numbers.
- A retiring worker finishes its requests and loads, and the evaluation of a version that it has pinned. If it dies
  before that, its requests are sent again, but it has no successor.
- Every worker keeps a pinned version. A replacement has it only if it is still the newest. If no worker has it,
  requests for it fail with `PinLostError`; they are never served by another version.
"""

import asyncio
from collections.abc import Callable, Sequence

from freerun.config.recipe import RuntimeConfig
from freerun.errors import RolloutError, WorkerError
from freerun.processes.patience import within
from freerun.processes.supervision import OnDeath, Supervisor, bury, end
from freerun.types import Completion, Doing, EngineStats, Publication, Request
from freerun.workers import messages as m
from freerun.workers.pinned_version import PinnedVersion, pin_lost
from freerun.workers.pooled_worker import PooledWorker, worker_name
from freerun.workers.roster import Roster, Spawn
from freerun.workers.routing import ServedRequests, choose_to_retire, choose_worker


class RolloutPool:
    """Starts, feeds, watches and replaces the rollout workers; implements `protocols.VersionedGenerator`."""

    def __init__(
        self,
        *,
        spawn: Spawn,
        start_message: m.StartEngine,
        num_workers: int,
        config: RuntimeConfig,
        on_report: Callable[[str, EngineStats], None],
        on_death: OnDeath,
        on_busy: Callable[[str, bool], None] = lambda worker, is_busy: None,
        on_doing: Callable[[str, Doing], None] = lambda worker, doing: None,
        on_loaded: Callable[[str, m.Loaded], None] = lambda worker, loaded: None,
    ) -> None:
        self._num_slots = start_message.engine.num_slots
        self._config = config
        self._num_restarts_left = config.max_worker_restarts
        self._on_report = on_report
        self._on_death = on_death
        self._on_busy = on_busy
        """Called when a worker gets work, and when it has finished its last request and load."""
        self._on_doing = on_doing
        """Called when what a worker does changes, and with each of its reports."""
        self._on_loaded = on_loaded
        self._workers = Roster(spawn, start_message, num_workers)
        self.missing, self.stats = self._workers.missing, self._workers.stats
        self._waiting: dict[int, asyncio.Future[tuple[Completion, ...]]] = {}
        self._served = ServedRequests()
        self.served_by = self._served.by
        self._published: Publication | None = None
        self._pinned_version: int | None = None
        self._has_started = False
        self._changed = asyncio.Event()
        self._supervisor = Supervisor()
        self.wait_for_loss = self._supervisor.wait_for_loss
        """Never returns; raises when a worker that cannot be replaced is lost."""
        self.raise_loss = self._supervisor.raise_loss
        """Raise if such a worker was lost; for callers that must not be interrupted."""

    @property
    def is_lost(self) -> bool:
        return self._supervisor.is_lost

    async def start(self) -> None:
        """Start all workers; returns when each worker that has a place in the cluster has read its model."""
        while (index := self._workers.reserve()) is not None:
            self._supervisor.start(self._serve(await self._workers.launch(index)))
        self._supervisor.check_often(self._check)
        # `_check` limits the time to start, which counts from when a worker has a place.
        await self._wait_until(lambda: self._workers.is_started)
        self._has_started = True

    @property
    def num_ready(self) -> int:
        return self._workers.num_ready

    @property
    def num_workers(self) -> int:
        return self._workers.num_staying

    @property
    def num_leaving(self) -> int:
        return self._workers.num_leaving

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        """All samples of the request; cancelling the call aborts it in the engine."""
        finished: asyncio.Future[tuple[Completion, ...]] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = finished
        self._dispatch(request)
        try:
            return await finished
        except BaseException:
            self._abort(request.request_id)  # only if a worker still holds it
            raise
        finally:
            self._waiting.pop(request.request_id, None)

    def _abort(self, request_id: int) -> None:
        for worker in self._workers:
            if worker.put_down(request_id) is not None:
                worker.link.send(m.Abort(request_ids=(request_id,)))
                self._note_busy(worker)

    def end_session(self, session: int) -> None:
        """Tell the session's workers to drop what they keep for it: it has no further requests."""
        for worker in self._workers:
            if session in worker.sessions:
                worker.sessions.remove(session)
                worker.link.send(m.EndSession(session=session))

    async def load(self, published: Publication) -> None:
        """Send the weights to every worker that is ready; returns when each has confirmed version and checksum.

        A worker that is not ready has been sent no weights and reads no buffer: it is not waited for, and gets
        the newest weights when it is ready. On return, every worker that was ever sent a version has confirmed
        this one or is gone, as `weights/shared.py` requires, and at least one has confirmed it.
        """
        self._published = published
        for worker in self._workers:
            if worker.is_ready:
                worker.link.send(m.Load(published=published))
                self._note_busy(worker)
        self._relieve_unplaced()  # they hold requests for a version that they will never have now

        def is_loaded() -> bool:
            ready = [worker for worker in self._workers if worker.is_ready]
            return bool(ready) and all(worker.has_loaded(published.version) for worker in ready)

        # An engine that holds only one version loads after the evaluation of that version, which may take long:
        # if its samples make no progress, `_check` notices.
        await self._wait_until(lambda: is_loaded() or self._pinned_version is None)
        seconds = self._config.start_seconds + self._config.stall_seconds
        try:
            await within(seconds, lambda: self._wait_until(is_loaded))
        except TimeoutError:
            where = self.missing() or "their logs are in the run directory"
            what = f"the rollout workers to load version {published.version}"
            raise WorkerError(f"waited {seconds:.0f} s for {what}; {where}") from None

    def pin(self, version: int) -> PinnedVersion:
        """Keep `version`, the last one loaded, in every worker; requests through the returned object use it."""
        assert self._pinned_version is None, f"version {self._pinned_version} is still pinned"
        self._pinned_version = version
        for worker in self._workers:
            if worker.is_ready and not worker.is_retiring:
                self._send_pin(worker)
        return PinnedVersion(self, version)

    def unpin(self) -> None:
        """Release the pinned version, if there is one."""
        self._pinned_version = None
        self._changed.set()
        for worker in self._workers:
            if worker.pinned_version is not None:
                worker.pinned_version = None
                worker.link.send(m.Unpin())
                self._note_busy(worker)

    def retire(self) -> str:
        """Let a worker finish its requests and exit; returns its name, empty if none can be spared now."""
        worker = choose_to_retire(list(self._workers))
        if worker is None:
            return ""
        worker.is_retiring = True
        self._workers.note_serving()
        if not worker.is_ready:
            self._dispatch_again(worker)  # none of its requests has been sent
        self._note_busy(worker)
        return worker.name

    def add(self) -> str:
        """Keep a retiring worker, or start a new one; returns its name, empty if none can be added."""
        for worker in self._workers:
            if worker.is_retiring and not worker.is_dismissed:
                worker.is_retiring = False
                self._workers.note_serving()
                return worker.name
        if (index := self._workers.reserve()) is None:
            return ""
        self._supervisor.start(self._join(index))
        return worker_name(index)

    async def close(self) -> None:
        """End all workers; returns when no process is left."""
        await self._supervisor.close([worker.link for worker in self._workers])

    def _dispatch(self, request: Request) -> None:
        able = self._workers.serving if request.pinned_version is None else []
        able = able or [worker for worker in self._workers if self._can_serve(worker, request)]
        if not able:
            self._fail(request.request_id, pin_lost(request))
            return
        worker = choose_worker(able, request, num_slots=self._num_slots)
        worker.take_on(request)
        if request.session is not None:
            worker.sessions.add(request.session)
        self._note_busy(worker)
        if worker.is_ready:
            if not worker.unsent:
                asyncio.get_running_loop().call_soon(self._send, worker)
            worker.unsent.append(request)

    def _can_serve(self, worker: PooledWorker, request: Request) -> bool:
        """Whether the worker has the version that the request is pinned to, or will have it when it is ready."""
        if request.pinned_version is None:
            return not worker.is_retiring
        if request.pinned_version == worker.pinned_version:
            return True
        is_newest = self._published is not None and request.pinned_version == self._published.version
        is_coming = not worker.is_ready and not worker.is_retiring
        return is_coming and is_newest and request.pinned_version == self._pinned_version

    def _fail(self, request_id: int, error: RolloutError) -> None:
        if (waiting := self._waiting.get(request_id)) is not None and not waiting.done():
            waiting.set_exception(error)

    def _send_pin(self, worker: PooledWorker) -> None:
        assert self._pinned_version is not None
        worker.pinned_version = self._pinned_version
        worker.link.send(m.Pin(version=self._pinned_version))

    def _send(self, worker: PooledWorker) -> None:
        """Send the worker's unsent requests in one message."""
        requests = tuple(request for request in worker.unsent if request.request_id in worker.requests)
        worker.unsent = []
        if not requests or not worker.is_ready:
            return
        try:
            worker.link.send(m.Generate(requests=requests))
        except Exception as error:  # noqa: BLE001 - a callback: the callers of `generate` must hear of it
            for request in requests:
                worker.put_down(request.request_id)
                self._fail(request.request_id, RolloutError(f"the request cannot be sent: {error!r}"))
            self._note_busy(worker)

    async def _serve(self, worker: PooledWorker) -> None:
        """Handle one worker's messages for as long as it can be kept alive."""
        try:
            while True:
                message = await worker.link.receive()
                if message is not None:
                    self._take_in(worker, message)
                elif worker.is_retiring:
                    return await self._leave(worker)
                else:
                    await self._replace(worker)
        except (WorkerError, OSError) as error:  # OSError: the machine has no room for another process
            raise WorkerError(f"{worker.name} is lost: {error}") from error

    def _take_in(self, worker: PooledWorker, message: m.FromRollout) -> None:
        worker.note_progress()
        match message:
            case m.Finished(completions=completions):
                for request_id, finished in completions.items():
                    worker.put_down(request_id)
                    self._served.note(request_id, worker.name)
                    if (waiting := self._waiting.get(request_id)) is not None and not waiting.done():
                        waiting.set_result(finished)
            case m.Refused(request_id=request_id, reason=reason):
                worker.put_down(request_id)
                self._fail(request_id, RolloutError(reason))
            case m.Loaded(published=published):
                worker.loaded_version = published.version
                self._on_loaded(worker.name, message)
                self._changed.set()
            case m.Report(stats=stats):
                worker.stats = stats
                self._on_report(worker.name, stats)
                self._on_doing(worker.name, worker.doing)
            case m.EngineReady():
                self._welcome(worker)
        self._note_busy(worker)

    def _note_busy(self, worker: PooledWorker) -> None:
        is_loading = self._published is not None and not worker.has_loaded(self._published.version)
        is_busy = bool(worker.requests) or is_loading or not worker.is_ready
        if is_busy != worker.is_busy:
            worker.is_busy = is_busy
            self._on_busy(worker.name, is_busy)
        if (state := worker.state) != worker.told_state:
            worker.told_state = state
            self._on_doing(worker.name, worker.doing)
        if worker.is_finished and not worker.is_dismissed:
            worker.is_dismissed = True
            worker.link.kill()

    def _welcome(self, worker: PooledWorker) -> None:
        """Send a new process the newest weights, then its requests."""
        worker.is_ready = True
        self._workers.note_serving()
        if self._published is not None:
            worker.link.send(m.Load(published=self._published))
            if self._published.version == self._pinned_version:
                self._send_pin(worker)
        for request in [r for r in worker.requests.values() if not self._can_serve(worker, r)]:
            worker.put_down(request.request_id)
            self._dispatch(request)
        if worker.requests:
            worker.link.send(m.Generate(requests=tuple(worker.requests.values())))
        self._relieve_unplaced()
        self._changed.set()

    def _relieve_unplaced(self) -> None:
        """Assign the requests of workers without a place again: before, no other worker could take them."""
        for worker in self._workers:
            if worker.requests and not worker.link.is_placed:
                self._dispatch_again(worker)

    def _dispatch_again(self, worker: PooledWorker) -> None:
        """Assign the worker's requests again."""
        held = list(worker.requests.values())
        for request in held:
            worker.put_down(request.request_id)
        for request in held:
            self._dispatch(request)

    async def _replace(self, worker: PooledWorker) -> None:
        """Start another process in place of one that is gone, and send its requests again."""

        def refusal() -> str:
            # One that ended by itself before it was ready would do so again; one that was taken away would not.
            if not worker.is_ready and not worker.link.was_taken_away:
                return "it never became ready"
            return "" if self._num_restarts_left > 0 else "no restarts are left"

        await bury(worker.link, self._on_death, refusal)
        self._num_restarts_left -= 1
        orphans = list(worker.requests.values())
        worker.forget_process()
        self._workers.note_serving()
        self._note_busy(worker)
        await self._workers.relaunch(worker)
        self._adopt(orphans)

    def _adopt(self, orphans: Sequence[Request]) -> None:
        for request in orphans:
            if request.request_id in self._waiting:  # the caller has not given up meanwhile
                self._dispatch(request)

    async def _join(self, index: int) -> None:
        """Start one more worker and serve it."""
        try:
            worker = await self._workers.launch(index)
        except (WorkerError, OSError) as error:
            raise WorkerError(f"{worker_name(index)} is lost: {error}") from error
        self._on_busy(worker.name, True)
        self._on_doing(worker.name, worker.doing)
        await self._serve(worker)

    async def _leave(self, worker: PooledWorker) -> None:
        """Remove a retiring worker whose process is gone; send its requests again if it had not finished."""
        has_died, worker.is_dismissed = not worker.is_finished, True
        how = await end(worker.link)
        if has_died:
            self._on_death(worker.name, how, False)
        orphans = list(worker.requests.values())
        worker.forget_process()
        self._workers.remove(worker)
        self._on_busy(worker.name, False)
        self._on_doing(worker.name, Doing("ended", "retired"))
        self._adopt(orphans)
        self._changed.set()

    def _check(self) -> None:
        """Kill workers that are silent, or stall while they have work; `_serve` then replaces them."""
        for worker in self._workers:
            if worker.is_lost(self._config):
                worker.link.kill()
        patience = self._config.stall_seconds if self._has_started else self._config.start_seconds
        is_needed = not self._has_started or bool(self._waiting)
        self._workers.require_a_place(is_needed=is_needed, patience=patience)
        self._changed.set()  # a worker can find or lose a place without a message

    async def _wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait until `is_true()`; raises when a worker is lost for good."""

        async def wait() -> None:
            while not is_true():
                self._changed.clear()
                await self._changed.wait()

        await self._supervisor.watch(wait())
