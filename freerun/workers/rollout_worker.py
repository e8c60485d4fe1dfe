"""A rollout worker: a process with one engine, which serves requests, loads and pins between engine steps.

    loop:  swap in weights that have arrived ─► take in messages ─► one engine step ─► send finished requests

While the engine has something to compute the loop never waits; otherwise it waits for the next message, or until
the engine wakes it. The engine is that of the recipe's backend (`freerun.backends.backend`).
"""

import time
from collections.abc import Iterable

import msgspec

from freerun.backends.backend import WorkerContext, find_backend
from freerun.errors import RequestError, WorkerError
from freerun.processes.parent import Parent, run_worker
from freerun.types import Completion, Publication, Request
from freerun.workers import messages as m

REPORT_SECONDS = 0.5
ARRIVAL_SECONDS = 0.1
"""How long an idle worker waits for weights before it checks for messages again."""


class RolloutWorker:
    """Translates messages into calls on the engine."""

    def __init__(self, parent: Parent[m.ToRollout], start: m.StartEngine) -> None:
        self._parent = parent
        backend = find_backend(start.engine.backend)
        self._engine = backend.make_engine(start, WorkerContext(parent.num_threads, parent.wake))
        self._incoming: Publication | None = None
        """A load whose weights have not arrived, or for which the engine is not ready."""
        self._is_incoming_here = False
        self._arrived = 0.0
        """When its weights arrived."""
        self._next_report = 0.0
        self._started = time.monotonic()
        self._waited_seconds = 0.0
        """Time spent waiting for messages or weights with nothing to compute."""

    def serve(self) -> None:
        self._parent.send(m.EngineReady())
        try:
            while True:
                self._serve_once()
        except WorkerError:
            self._engine.close()
            raise

    def _serve_once(self) -> None:
        if self._incoming is not None:
            self._load(self._incoming)
        if not self._holds_messages:
            self._take_in_messages()
        self._answer(self._engine.step())
        self._report()

    @property
    def _holds_messages(self) -> bool:
        """Messages behind a load are meant for the new weights, so they wait until these have arrived."""
        return self._incoming is not None and not self._is_incoming_here

    def _take_in_messages(self) -> None:
        patience = 0.0 if self._engine.must_step else max(0.001, self._next_report - time.monotonic())
        while (message := self._wait_for_message(patience)) is not None:
            patience = 0.0
            match message:
                case m.Generate(requests=requests):
                    for request in requests:
                        self._submit(request)
                case m.Load(published=published):
                    self._load(published)
                    if self._holds_messages:
                        return
                case m.Pin(version=version):
                    self._engine.pin(version)
                case m.Unpin():
                    self._engine.unpin()
                    if self._incoming is not None:
                        self._load(self._incoming)
                case m.Abort(request_ids=request_ids):
                    for request_id in request_ids:
                        self._engine.abort(request_id)
                case m.EndSession(session=session):
                    self._engine.end_session(session)
                case m.StartEngine():
                    raise WorkerError("a rollout worker is started once")

    def _wait_for_message(self, patience: float) -> m.ToRollout | None:
        if not patience:
            return self._parent.receive(0.0)
        began = time.monotonic()
        try:
            return self._parent.receive(patience)
        finally:
            self._waited_seconds += time.monotonic() - began

    def _submit(self, request: Request) -> None:
        try:
            self._engine.submit(request)
        except RequestError as error:
            self._answer([(request, error)])

    def _answer(self, results: Iterable[tuple[Request, tuple[Completion, ...] | RequestError]]) -> None:
        completions: dict[int, tuple[Completion, ...]] = {}
        for request, result in results:
            if isinstance(result, RequestError):
                self._parent.send(m.Refused(request_id=request.request_id, reason=str(result)))
            else:
                completions[request.request_id] = result
        if completions:
            self._parent.send(m.Finished(completions=completions))

    def _has_arrived(self, published: Publication) -> bool:
        patience = 0.0 if self._engine.must_step else ARRIVAL_SECONDS
        began = time.monotonic()
        has_arrived = self._engine.has_arrived(published, timeout_seconds=patience)
        self._waited_seconds += time.monotonic() - began if patience else 0.0
        return has_arrived

    def _load(self, published: Publication) -> None:
        was_here = self._is_incoming_here and self._incoming == published
        self._incoming = published
        self._is_incoming_here = self._has_arrived(published)
        if not was_here:
            self._arrived = time.monotonic()
        if self._is_incoming_here and self._engine.is_ready_to_load():
            self._incoming = None
            self._is_incoming_here = False
            began = time.monotonic()
            num_interrupts = self._engine.load(published)
            self._parent.send(
                m.Loaded(
                    published=published,
                    load_seconds=time.monotonic() - began,
                    drain_seconds=began - self._arrived,
                    num_interrupts=num_interrupts,
                )
            )
            self._next_report = 0.0

    def _report(self) -> None:
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + REPORT_SECONDS
            if (stats := self._engine.stats(waited_seconds=self._waited_seconds)) is not None:
                up_seconds = now - self._started
                self._parent.send(m.Report(stats=msgspec.structs.replace(stats, up_seconds=up_seconds)))


def serve(parent: Parent[m.ToRollout]) -> None:
    RolloutWorker(parent, parent.receive_first(m.StartEngine)).serve()


if __name__ == "__main__":
    run_worker(m.ToRollout, serve)
