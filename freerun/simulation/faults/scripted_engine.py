"""A rollout worker of a scenario: real messages and versions, but no tokens to compute.

It keeps the order of `workers/rollout_worker.py`: new weights are packed while it decodes, and messages behind
them wait for that. Packed weights are swapped in at once, or when a draining engine is idle, or when an engine
that holds a single version is unpinned. A request is sampled in a few parts; the version at the end of each
part is that of its token.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from freerun.simulation.faults import durations as d
from freerun.simulation.worker_link import SimulatedLink
from freerun.types import Completion, EngineStats, Publication, Request, Span
from freerun.workers import messages as m

if TYPE_CHECKING:
    from freerun.simulation.faults.world import FaultWorld

_TOKENS, _LOGPROBS = np.zeros(d.PARTS_PER_ROLLOUT, np.int32), np.zeros(d.PARTS_PER_ROLLOUT, np.float32)


class ScriptedEngine:
    """Implements `SimulatedWorker`; the dice determine all durations."""

    def __init__(self, link: SimulatedLink, world: FaultWorld, *, launch: int) -> None:
        self.link = link
        self.is_ready = False
        self.is_stuck = False
        self.hangs_in_load = False
        """Whether it will hang when told to load."""
        self.slowness = 0.0
        """Slowness of loads; a fault raises it."""
        self.num_refusals = 0
        """Number of requests to refuse."""
        self.version: int | None = None
        self.pinned: int | None = None
        self.running: dict[int, tuple[Request, list[int]]] = {}
        """By request id, the request and the versions of its tokens so far."""
        self.incoming: Publication | None = None
        """A load that waits or is in progress."""
        self._world = world
        self._dice = world.dice
        self._launch = launch
        self._loop = asyncio.get_running_loop()
        self._is_packing = False
        self._unread: deque[m.ToRollout] = deque()
        self._held: list[int] = []
        """Requests that wait for weights, or for the load of a draining engine."""
        self._num_tokens = 0
        self._num_reported = 0

    @property
    def name(self) -> str:
        return self.link.name

    @property
    def requests(self) -> set[int]:
        """The requests it will serve when it has read all messages."""
        held = {*self.running}
        for message in self._unread:
            if isinstance(message, m.Generate):
                held.update(request.request_id for request in message.requests)
            elif isinstance(message, m.Abort):
                held.difference_update(message.request_ids)
        return held

    @property
    def versions_in_use(self) -> list[int]:
        """The versions it uses from shared weights: to sample with, and to read."""
        incoming = [] if self.incoming is None else [self.incoming.version]
        return incoming if self.version is None else [self.version, *incoming]

    def take(self, message: m.ToRollout) -> None:
        if isinstance(message, m.Generate):
            self._world.properties.tell("sent", self, message.requests)
        self._unread.append(message)
        self._read()

    def end(self) -> None:
        self.is_stuck = True

    def start(self) -> None:
        """Load the model, on the machine it was given."""
        self._later(d.ENGINE_START * self._dice.share("start", self.name, self._launch), self._become_ready)

    def _later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self._loop.call_later(seconds, self._act, act, *args)

    def _act(self, act: Callable[..., None], *args: Any) -> None:
        if not self.is_stuck:
            act(*args)

    def _read(self) -> None:
        while self._unread and not self._is_packing and not self.is_stuck:
            self._handle(self._unread.popleft())

    def _handle(self, message: m.ToRollout) -> None:
        match message:
            case m.StartEngine():
                if self.link.is_placed:
                    self.start()
            case m.Generate(requests=requests):
                for request in requests:
                    self._submit(request)
            case m.Abort(request_ids=request_ids):
                for request_id in request_ids:
                    self.running.pop(request_id, None)
                self._try_load()
            case m.Load(published=published):
                self.incoming = published
                self.is_stuck = self.hangs_in_load
                self._pack(published)
            case m.Pin(version=version):
                self._world.properties.tell("pinned", self, version)
                self.pinned = self.version
            case m.Unpin():
                self.pinned = None
                aborted = [i for i, (request, _) in self.running.items() if request.pinned_version is not None]
                for request_id in aborted:
                    del self.running[request_id]
                self._try_load()

    def _become_ready(self) -> None:
        self.is_ready = True
        self.link.tell(m.EngineReady())
        self._report_often()

    def _report_often(self) -> None:
        # Like the real one: not if it has work but has sampled nothing since the last report.
        if not self.running or self._num_tokens > self._num_reported:
            self._report()
        self._later(d.REPORT, self._report_often)

    def _report(self) -> None:
        self._num_reported = self._num_tokens
        self.link.tell(m.Report(stats=EngineStats(version=self.version, num_tokens=self._num_tokens)))

    def _submit(self, request: Request) -> None:
        if self.num_refusals > 0 and request.pinned_version is None:
            self.num_refusals -= 1
            self.link.tell(m.Refused(request_id=request.request_id, reason="the prompt is too long"))
            return
        self.running[request.request_id] = (request, [])
        attempt = self._world.attempt(request)
        if self._must_wait(request):
            self._held.append(request.request_id)
        else:
            self._begin_part(request, attempt)

    def _must_wait(self, request: Request) -> bool:
        is_draining = self.incoming is not None and self._world.drains
        return request.pinned_version is None and (self.version is None or is_draining)

    def _begin_part(self, request: Request, attempt: int) -> None:
        _, versions = self.running[request.request_id]
        what = (request.ordinal, request.pinned_version or 0, attempt, len(versions))
        is_long = self._dice.share("long part", *what) < d.LONG_PART_SHARE
        longest = self._world.scenario.tail_seconds if is_long else d.PART
        if self.name == "rollout-0":
            longest *= self._world.scenario.slow_factor
        self._later(longest * self._dice.share("part", *what), self._end_part, request, attempt)

    def _end_part(self, request: Request, attempt: int) -> None:
        if request.request_id not in self.running:
            return  # the request was aborted
        _, versions = self.running[request.request_id]
        version = self.version if request.pinned_version is None else self._pinned_version(request)
        assert version is not None
        versions.append(version)
        self._num_tokens += request.num_samples
        if len(versions) < d.PARTS_PER_ROLLOUT:
            self._begin_part(request, attempt)
        else:
            self._finish(request, versions)

    def _pinned_version(self, request: Request) -> int | None:
        self._world.properties.tell("sampled_pinned", self, request)
        return self.pinned if self.pinned is not None else self.version

    def _finish(self, request: Request, versions: list[int]) -> None:
        del self.running[request.request_id]
        spans = tuple(Span(version, 1) for version in versions)
        completions = tuple(
            Completion(
                token_ids=_TOKENS,
                logprobs=_LOGPROBS,
                spans=spans,
                finish_reason="stop",
                text=f"{request.ordinal} {request.sample + sample}",
            )
            for sample in range(request.num_samples)
        )
        self.link.tell(m.Finished(completions={request.request_id: completions}))
        self._report()
        self._try_load()

    def _pack(self, published: Publication) -> None:
        self._is_packing = True
        longest = d.LOAD + self.slowness * d.SLOW_LOAD
        self._later(longest * self._dice.share("load", self.name, published.version), self._end_packing)

    def _end_packing(self) -> None:
        self._is_packing = False
        self._try_load()
        self._read()

    def _try_load(self) -> None:
        """Swap in the packed weights if nothing needs the current version."""
        if self.incoming is None or self._is_packing:
            return
        begun = [request for i, (request, _) in self.running.items() if i not in self._held]
        is_busy = self._world.drains and any(request.pinned_version is None for request in begun)
        is_kept = self._world.scenario.holds_one_version and self.pinned is not None
        if not is_busy and not is_kept:
            self._swap(self.incoming)

    def _swap(self, published: Publication) -> None:
        self._world.properties.tell("loaded", self, published.version)
        self.version, self.incoming = published.version, None
        self.link.tell(m.Loaded(published=published))
        held, self._held = self._held, []
        for request_id in held:
            if request_id in self.running:
                request, _ = self.running[request_id]
                self._begin_part(request, self._world.attempt(request))
