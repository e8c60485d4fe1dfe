"""A rollout worker around a vLLM server of its own: the messages of `rollout_worker.py`, another engine.

    controller ─ messages ─► main loop ─ one call for each sample, num_slots at a time ─► vLLM server
                                 ▲────────────── completions, from threads that wait ◄──────┘

A load stops the server between two of its steps; the same requests then go on. While a version is pinned a load
waits: the server holds one version, and rollouts go on under it. When the server dies or stops answering, so does
this process, with the reason in its log; what is started again, and with which requests, the controller decides.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from freerun.backends.vllm.agreement import require_agreement
from freerun.backends.vllm.client import Counters, Sampled
from freerun.backends.vllm.samples import sampling_parameters, to_completion
from freerun.backends.vllm.server import ServerSettings, VllmServer
from freerun.backends.vllm.swap import swap_weights
from freerun.backends.vllm.weights import MergedWeights, PublishedWeights, directory_weights
from freerun.data.tokenizer import Tokenizer
from freerun.errors import FreerunError, RequestError, WeightsError, WorkerError
from freerun.model.adapter_directory import base_of, is_adapter, model_config
from freerun.model.checkpoint import load_model
from freerun.processes.guard import leave_guard
from freerun.processes.parent import Parent, run_worker
from freerun.types import Completion, EngineStats, Publication, Request
from freerun.workers.messages import (
    Abort,
    EngineReady,
    Finished,
    Generate,
    Load,
    Loaded,
    Pin,
    Refused,
    Report,
    StartEngine,
    ToRollout,
    Unpin,
)

REPORT_SECONDS = 0.5
MESSAGE_SECONDS = 60.0
SETTLE_SECONDS = 0.5
"""A server that closes its connections is often about to end."""


@dataclass(frozen=True)
class _Sample:
    request: Request
    index: int
    call_id: str
    """Its name on the server: new for every call, since an aborted one may linger there."""


@dataclass(frozen=True)
class _Ended:
    """What became of one sample's call."""

    sample: _Sample
    result: Sampled | FreerunError


class _Group:
    """The samples of one request; they are returned together."""

    def __init__(self, request: Request, samples: list[_Sample]) -> None:
        self.request = request
        self.samples = samples
        self.completions: dict[int, Completion] = {}

    @property
    def num_left(self) -> int:
        return len(self.samples) - len(self.completions)


class VllmWorker:
    """Translates messages into calls on the server."""

    def __init__(self, parent: Parent[ToRollout], start: StartEngine) -> None:
        torch.set_num_threads(parent.num_threads)
        self._parent = parent
        self._seed = start.seed
        self._engine = start.engine
        directory, buffers = Path(start.model_directory), parent.weight_buffers
        self._text = Tokenizer.load(directory)
        self._weights: PublishedWeights | MergedWeights | None = None
        if buffers and start.lora.is_on:
            self._weights = MergedWeights(buffers, start.lora, Path(start.base_directory))
        elif buffers:
            self._weights = PublishedWeights(buffers, directory)
        raw = model_config(directory)
        self._max_tokens = min(start.max_sequence_tokens, raw["max_position_embeddings"])
        needs_weights = bool(buffers) or is_adapter(directory)
        if start.engine.addresses:
            address = start.engine.addresses[start.worker_index]
            self._server = VllmServer.join(address, max_sequence_tokens=self._max_tokens)
        else:
            settings = ServerSettings(
                engine=start.engine,
                model_directory=base_of(directory) if is_adapter(directory) else directory,
                model_config=raw,
                max_sequence_tokens=start.max_sequence_tokens,
                loads_weights=needs_weights,
                num_threads=parent.num_threads,
                worker_index=start.worker_index,
            )
            self._server = VllmServer.start(settings)
        self._client = self._server.client
        self._version = -1 if buffers else 0
        self._pinned_version = -1
        self._deferred: Publication | None = None
        """A load that waits for the pinned version to be let go."""
        self._groups: dict[int, _Group] = {}
        self._waiting: deque[_Sample] = deque()
        self._running: dict[str, _Sample] = {}
        self._num_calls = 0
        self._events: queue.SimpleQueue[ToRollout | _Ended] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(self._engine.num_slots)
        self._num_loads = self._num_interrupts = self._num_recomputed = 0
        self._busy_seconds = self._load_seconds = 0.0
        try:
            self._server.warm_up()
            if not buffers and (self._server.is_joined or is_adapter(directory)):
                self._load_directory(directory)
            self._before = self._counters = self._client.counters()
            """What a joined server had counted before it was joined is not ours."""
        except BaseException:
            self._server.end()
            raise
        self._next_report = self._last_report = time.monotonic()
        threading.Thread(target=self._forward_messages, daemon=True).start()

    def serve(self) -> None:
        self._parent.send(EngineReady())
        try:
            while True:
                self._take_in_events()
                self._submit_waiting()
                self._server.check()
                self._report()
        except WorkerError:
            time.sleep(SETTLE_SECONDS)
            self._server.check()  # its end explains more than the call that failed
            self._server.end()
            raise

    # ---- events ---------------------------------------------------------------------------------

    def _forward_messages(self) -> None:
        """Bring messages into the queue in which samples end, so that one loop can wait for both."""
        while True:
            if (message := self._parent.receive(MESSAGE_SECONDS)) is not None:
                self._events.put(message)

    def _take_in_events(self) -> None:
        """All that has arrived; if there is nothing, wait for it until the next report is due."""
        patience = max(0.001, self._next_report - time.monotonic())
        try:
            self._take_in(self._events.get(timeout=patience))
            while True:
                self._take_in(self._events.get_nowait())
        except queue.Empty:
            return

    def _take_in(self, event: ToRollout | _Ended) -> None:
        match event:
            case _Ended(sample=sample, result=result):
                self._end(sample, result)
            case Generate(requests=requests):
                for request in requests:
                    self._submit(request)
            case Load(published=published):
                self._load(published)
            case Pin(version=version):
                self._pin(version)
            case Unpin():
                self._unpin()
            case Abort(request_ids=request_ids):
                for request_id in request_ids:
                    self._abort(request_id)
            case StartEngine():
                raise WorkerError("a rollout worker is started once")

    # ---- samples --------------------------------------------------------------------------------

    def _submit(self, request: Request) -> None:
        num_prompt, num_new = len(request.prompt_token_ids), request.sampling.max_completion_tokens
        reason = ""
        if num_prompt == 0:
            reason = f"prompt {request.ordinal} has no tokens; an empty prompt cannot be continued"
        elif num_prompt + num_new > self._max_tokens:
            reason = (
                f"prompt {request.ordinal} needs {num_prompt} + {num_new} tokens, the server takes sequences of "
                f"{self._max_tokens}; shorten the prompt or sampling.max_completion_tokens"
            )
        elif request.pinned_version not in (-1, self._pinned_version):
            reason = f"version {request.pinned_version} is not pinned here"
        if reason:
            self._parent.send(Refused(request_id=request.request_id, reason=reason))
            return
        samples = []
        for index in range(request.num_samples):
            self._num_calls += 1
            samples.append(_Sample(request, index, f"freerun-{os.getpid()}-{self._num_calls}"))
        self._groups[request.request_id] = _Group(request, samples)
        self._waiting.extend(samples)

    def _submit_waiting(self) -> None:
        """Fill the server's slots; what waits, waits here, where an abort costs nothing."""
        while self._waiting and len(self._running) < self._engine.num_slots:
            sample = self._waiting.popleft()
            self._running[sample.call_id] = sample
            # Cached prompts of one version are never another's: they are looked up under its name.
            self._threads.submit(self._call, sample, f"version {self._version}")

    def _call(self, sample: _Sample, salt: str) -> None:
        """In a thread of its own: wait for the sample."""
        request = sample.request
        try:
            parameters = sampling_parameters(request, sample.index, self._seed)
            prompt = request.prompt_token_ids.tolist()
            self._events.put(_Ended(sample, self._client.generate(sample.call_id, prompt, parameters, salt)))
        except FreerunError as error:
            self._events.put(_Ended(sample, error))
        except Exception as error:  # noqa: BLE001 - the edge of a thread: it must not die unseen
            self._events.put(_Ended(sample, WorkerError(f"{type(error).__name__}: {error}")))

    def _end(self, sample: _Sample, result: Sampled | FreerunError) -> None:
        self._running.pop(sample.call_id, None)
        request_id = sample.request.request_id
        group = self._groups.get(request_id)
        if group is None or not self._is_wanted(sample):
            if isinstance(result, WorkerError):
                raise result
            return  # given up
        if isinstance(result, RequestError):
            self._abort(request_id)
            self._parent.send(Refused(request_id=request_id, reason=str(result)))
            return
        if isinstance(result, FreerunError):
            raise result
        completion = to_completion(result, sample.request, self._text)
        self._count_interrupts(completion, len(sample.request.prompt_token_ids))
        group.completions[sample.index] = completion
        if group.num_left == 0:
            del self._groups[request_id]
            completions = tuple(group.completions[index] for index in range(len(group.samples)))
            self._parent.send(Finished(request_id=request_id, completions=completions))

    def _is_wanted(self, sample: _Sample) -> bool:
        group = self._groups.get(sample.request.request_id)
        return group is not None and group.request is sample.request

    def _abort(self, request_id: int) -> None:
        group = self._groups.pop(request_id, None)
        if group is None:
            return
        self._waiting = deque(sample for sample in self._waiting if sample.request is not group.request)
        if running := [sample.call_id for sample in group.samples if sample.call_id in self._running]:
            self._client.abort(running)

    # ---- versions -------------------------------------------------------------------------------

    def _load(self, published: Publication) -> None:
        if self._pinned_version >= 0:
            self._deferred = published
            return
        assert self._weights is not None
        readable = self._weights.readable(published)
        begin = time.perf_counter()
        swap_weights(self._client, readable, keeps_cache=self._keeps_cache)
        if self._num_loads == 0:
            require_agreement(self._client, self._weights.model(published), self._engine.dtype)
        self._load_seconds += time.perf_counter() - begin
        self._num_loads += 1
        self._version = published.version
        self._parent.send(Loaded(published=published))
        self._next_report = 0.0

    @property
    def _keeps_cache(self) -> bool:
        return self._engine.kv_on_load == "keep"

    def _load_directory(self, directory: Path) -> None:
        """Give the server a directory's weights, which it was not started with, and prove that it has them."""
        model = load_model(directory)
        swap_weights(self._client, directory_weights(model), keeps_cache=self._keeps_cache)
        require_agreement(self._client, model, self._engine.dtype)

    def _pin(self, version: int) -> None:
        if self._version != version:
            raise WeightsError(f"version {version} cannot be pinned: the engine holds {self._version}")
        self._pinned_version = version

    def _unpin(self) -> None:
        self._pinned_version = -1
        for request_id in [i for i, group in self._groups.items() if group.request.pinned_version >= 0]:
            self._abort(request_id)
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self._load(deferred)

    # ---- numbers --------------------------------------------------------------------------------

    def _count_interrupts(self, completion: Completion, num_prompt: int) -> None:
        """Every span after the first began with a load, which recomputed all that came before it."""
        num_before = num_prompt
        for before in completion.spans[:-1]:
            num_before += before.num_tokens
            self._num_interrupts += 1
            self._num_recomputed += 0 if self._keeps_cache else num_before

    def _report(self) -> None:
        """Say how far the server is; while it has work and samples nothing, say nothing: that is a stall."""
        now = time.monotonic()
        if now < self._next_report:
            return
        self._next_report = now + REPORT_SECONDS
        if self._groups:
            self._busy_seconds += now - self._last_report
        self._last_report = now
        # An abort that overtook its own request was for an id that the server did not know yet.
        if ghosts := [sample.call_id for sample in self._running.values() if not self._is_wanted(sample)]:
            self._client.abort(ghosts)
        before, self._counters = self._counters, self._client.counters()
        if not self._groups or self._counters.num_tokens != before.num_tokens:
            self._parent.send(Report(stats=self._stats(self._counters)))

    def _stats(self, counters: Counters) -> EngineStats:
        running = [s for s in self._running.values() if s.request.pinned_version < 0]
        waiting = [s for s in self._waiting if s.request.pinned_version < 0]
        pinned = [group for group in self._groups.values() if group.request.pinned_version >= 0]
        return EngineStats(
            version=self._version,
            num_tokens=counters.num_tokens - self._before.num_tokens,
            num_prefill_tokens=counters.num_prefill_tokens - self._before.num_prefill_tokens,
            num_steps=counters.num_steps - self._before.num_steps,
            busy_seconds=self._busy_seconds,
            num_running=len(running),
            num_waiting=len(waiting),
            num_slots=self._engine.num_slots,
            num_evaluating=sum(group.num_left for group in pinned),
            cache_tokens_used=int(counters.cache_usage * self._engine.cache_tokens),
            cache_tokens=self._engine.cache_tokens,
            num_interrupts=self._num_interrupts,
            num_loads=self._num_loads,
            num_preemptions=counters.num_preemptions - self._before.num_preemptions,
            load_seconds=self._load_seconds,
            num_recomputed_tokens=self._num_recomputed,
        )


def serve(parent: Parent[ToRollout]) -> None:
    VllmWorker(parent, parent.receive_first(StartEngine)).serve()


if __name__ == "__main__":
    leave_guard()
    run_worker(ToRollout, serve)
