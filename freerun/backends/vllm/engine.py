"""A vLLM server as the engine of a rollout worker: one call per sample, from waiting threads.

    worker's loop ─ step ─► num_slots calls at a time ─► vLLM server
                     ▲──────── samples that ended, and a wake-up ◄──┘

A load pauses the server between two of its steps; the same requests then continue. While a version is pinned a
load waits: the server holds one version, and rollouts continue under it. If the server dies or stops answering,
the worker fails with the reason in its log; the controller decides what is restarted, with which requests.
"""

import os
import queue
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from freerun.backends.backend import EngineStart, WorkerContext
from freerun.backends.vllm.client import Counters, Sampled
from freerun.backends.vllm.loading import require_agreement, swap_weights
from freerun.backends.vllm.salts import CacheSalts
from freerun.backends.vllm.samples import sampling_parameters, to_completion
from freerun.backends.vllm.server import ServerSettings, VllmServer
from freerun.backends.vllm.weights import ServerChannel, directory_weights
from freerun.data.tokenizer import Tokenizer
from freerun.errors import FreerunError, RequestError, WeightsError, WorkerError
from freerun.model.adapter_directory import base_of, is_adapter, model_config
from freerun.model.checkpoint import load_model
from freerun.types import Completion, EngineStats, Publication, Request

SETTLE_SECONDS = 0.5
"""Time to wait after a lost connection: such a server often exits right after."""


@dataclass(frozen=True)
class _Sample:
    request: Request
    index: int
    call_id: str
    """Its id on the server, new for every call: an aborted call may linger there."""


@dataclass(frozen=True)
class _Ended:
    """The outcome of one sample's call."""

    sample: _Sample
    result: Sampled | FreerunError


class _PendingRequest:
    """The samples of one request; they are returned together."""

    def __init__(self, request: Request, samples: list[_Sample]) -> None:
        self.request = request
        self.samples = samples
        self.completions: dict[int, Completion] = {}

    @property
    def num_left(self) -> int:
        return len(self.samples) - len(self.completions)


class VllmEngine:
    """Implements `backend.GeneratorEngine` by calls to one server."""

    def __init__(
        self,
        server: VllmServer,
        channel: ServerChannel | None,
        start: EngineStart,
        *,
        max_sequence_tokens: int,
        wake: Callable[[], None],
    ) -> None:
        self._server = server
        self._client = server.client
        self._channel = channel
        self._config = start.engine
        self._seed = start.seed
        self._text = Tokenizer.load(Path(start.model_directory))
        self._max_tokens = max_sequence_tokens
        self._wake = wake
        self._version: int | None = None if channel else 0
        self._pinned_version: int | None = None
        self._pending: dict[int, _PendingRequest] = {}
        self._waiting: deque[_Sample] = deque()
        self._running: dict[str, _Sample] = {}
        self._salts = CacheSalts(keeps_cache=self._keeps_cache)
        self.end_session = self._salts.end_session
        self._num_calls = 0
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(start.engine.num_slots)
        self._num_loads = self._num_interrupts = self._num_recomputed = 0
        self._decode_seconds = self._evaluate_seconds = self._idle_seconds = self._load_seconds = 0.0
        self._load_seconds_before = 0.0
        self._before = self._counters = self._client.counters()
        """Counters of a joined server before this run, to be subtracted."""
        self._last_report = time.monotonic()

    must_step = False  # the loop is woken by samples that end

    def step(self) -> list[tuple[Request, tuple[Completion, ...] | RequestError]]:
        """Collect finished samples and fill their slots."""
        finished = []
        while not self._ended.empty():
            ended = self._ended.get()
            if (result := self._end(ended.sample, ended.result)) is not None:
                finished.append((ended.sample.request, result))
        self._submit_waiting()
        self._server.check()
        return finished

    def close(self) -> None:
        time.sleep(SETTLE_SECONDS)
        try:
            self._server.check()  # the server's end explains more than the failed call does
        finally:
            self._server.end()

    # ---- samples --------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        num_prompt, num_new = len(request.prompt_token_ids), request.sampling.max_completion_tokens
        if num_prompt == 0:
            raise RequestError(f"prompt {request.ordinal} has no tokens; an empty prompt cannot be continued")
        if num_prompt + num_new > self._max_tokens:
            raise RequestError(
                f"prompt {request.ordinal} needs {num_prompt} + {num_new} tokens, the server takes sequences of "
                f"{self._max_tokens}; shorten the prompt or sampling.max_completion_tokens"
            )
        if request.pinned_version not in (None, self._pinned_version):
            raise RequestError(f"version {request.pinned_version} is not pinned here")
        samples = []
        for index in range(request.num_samples):
            self._num_calls += 1
            samples.append(_Sample(request, index, f"freerun-{os.getpid()}-{self._num_calls}"))
        self._pending[request.request_id] = _PendingRequest(request, samples)
        self._waiting.extend(samples)

    def _submit_waiting(self) -> None:
        """Fill the server's slots; other samples wait here, where an abort is free."""
        while self._waiting and len(self._running) < self._config.num_slots:
            sample = self._waiting.popleft()
            self._running[sample.call_id] = sample
            self._threads.submit(self._call, sample, self._salts.salt(sample.request.session, self._version))

    def _call(self, sample: _Sample, salt: str) -> None:
        """Wait for the sample, on a thread of the pool."""
        result: Sampled | FreerunError
        try:
            parameters = sampling_parameters(sample.request, sample.index, self._seed)
            prompt = sample.request.prompt_token_ids.tolist()
            result = self._client.generate(sample.call_id, prompt, parameters, salt)
        except FreerunError as error:
            result = error
        except Exception as error:  # noqa: BLE001 - the edge of a thread: it must not die unseen
            result = WorkerError(f"{type(error).__name__}: {error}")
        self._ended.put(_Ended(sample, result))
        self._wake()

    def _end(
        self, sample: _Sample, result: Sampled | FreerunError
    ) -> tuple[Completion, ...] | RequestError | None:
        """The outcome of the sample's request, if it is now known."""
        self._running.pop(sample.call_id, None)
        request_id = sample.request.request_id
        pending = self._pending.get(request_id)
        if pending is None or not self._is_wanted(sample):
            if isinstance(result, WorkerError):
                raise result
            return None  # the request was aborted
        if isinstance(result, RequestError):
            self.abort(request_id)
            return result
        if isinstance(result, FreerunError):
            raise result
        completion = to_completion(result, sample.request, self._text)
        self._count_interrupts(completion, len(sample.request.prompt_token_ids))
        pending.completions[sample.index] = completion
        if pending.num_left:
            return None
        del self._pending[request_id]
        return tuple(pending.completions[index] for index in range(len(pending.samples)))

    def _is_wanted(self, sample: _Sample) -> bool:
        pending = self._pending.get(sample.request.request_id)
        return pending is not None and pending.request is sample.request

    def abort(self, request_id: int) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return
        self._waiting = deque(sample for sample in self._waiting if sample.request is not pending.request)
        if running := [sample.call_id for sample in pending.samples if sample.call_id in self._running]:
            self._client.abort(running)

    # ---- versions -------------------------------------------------------------------------------

    def has_arrived(self, published: Publication, *, timeout_seconds: float) -> bool:
        assert self._channel is not None
        return self._channel.has_arrived(published, timeout_seconds=timeout_seconds)

    def is_ready_to_load(self) -> bool:
        return self._pinned_version is None

    def load(self, published: Publication) -> int:
        assert self._channel is not None
        num_interrupts = len(self._running)
        readable = self._channel.relay(published)
        begin = time.perf_counter()
        swap_weights(self._client, readable, keeps_cache=self._keeps_cache)
        if self._num_loads == 0:
            require_agreement(self._client, self._channel.model(published), self._config.dtype)
        self._load_seconds += time.perf_counter() - begin
        self._num_loads += 1
        self._version = published.version
        return num_interrupts

    @property
    def _keeps_cache(self) -> bool:
        return self._config.kv_on_load == "keep"

    def pin(self, version: int) -> None:
        if self._version != version:
            raise WeightsError(f"version {version} cannot be pinned: the engine holds {self._version}")
        self._pinned_version = version

    def unpin(self) -> None:
        self._pinned_version = None
        for request_id in [i for i, p in self._pending.items() if p.request.pinned_version is not None]:
            self.abort(request_id)

    # ---- numbers --------------------------------------------------------------------------------

    def _count_interrupts(self, completion: Completion, num_prompt: int) -> None:
        """Count the spans after the first: each began with a load that recomputed all earlier tokens."""
        num_before = num_prompt
        for before in completion.spans[:-1]:
            num_before += before.num_tokens
            self._num_interrupts += 1
            self._num_recomputed += 0 if self._keeps_cache else num_before

    def stats(self, *, waited_seconds: float) -> EngineStats | None:
        """The server computes while the loop waits, so its activity is derived from its pending requests."""
        self._note_time()
        # An abort that arrived before its request named an id that the server did not know yet.
        if ghosts := [sample.call_id for sample in self._running.values() if not self._is_wanted(sample)]:
            self._client.abort(ghosts)
        before, self._counters = self._counters, self._client.counters()
        is_stalled = bool(self._pending) and self._counters.num_tokens == before.num_tokens
        return None if is_stalled else self._stats(self._counters)

    def _note_time(self) -> None:
        """Add the time since the last report, without loads; the server does not separate recomputing."""
        now = time.monotonic()
        paused, self._load_seconds_before = self._load_seconds - self._load_seconds_before, self._load_seconds
        seconds, self._last_report = max(0.0, now - self._last_report - paused), now
        if any(pending.request.pinned_version is None for pending in self._pending.values()):
            self._decode_seconds += seconds
        elif self._pending:
            self._evaluate_seconds += seconds
        else:
            self._idle_seconds += seconds

    def _stats(self, counters: Counters) -> EngineStats:
        running = [s for s in self._running.values() if s.request.pinned_version is None]
        waiting = [s for s in self._waiting if s.request.pinned_version is None]
        pinned = [p for p in self._pending.values() if p.request.pinned_version is not None]
        return EngineStats(
            version=self._version,
            num_tokens=counters.num_tokens - self._before.num_tokens,
            num_prefill_tokens=counters.num_prefill_tokens - self._before.num_prefill_tokens,
            num_steps=counters.num_steps - self._before.num_steps,
            busy_seconds=self._decode_seconds + self._evaluate_seconds,
            decode_seconds=self._decode_seconds,
            evaluate_seconds=self._evaluate_seconds,
            idle_seconds=self._idle_seconds,
            num_running=len(running),
            num_waiting=len(waiting),
            num_slots=self._config.num_slots,
            num_evaluating=sum(p.num_left for p in pinned),
            cache_tokens_used=int(counters.cache_usage * self._config.cache_tokens),
            cache_tokens=self._config.cache_tokens,
            num_interrupts=self._num_interrupts,
            num_loads=self._num_loads,
            num_preemptions=counters.num_preemptions - self._before.num_preemptions,
            load_seconds=self._load_seconds,
            num_recomputed_tokens=self._num_recomputed,
            num_adopted_tokens=counters.num_cached_tokens - self._before.num_cached_tokens,
        )


def make_engine(start: EngineStart, context: WorkerContext) -> VllmEngine:
    """Start or join the worker's server; returns when it can generate or load its first weights."""
    torch.set_num_threads(context.num_threads)
    directory, base = Path(start.model_directory), Path(start.base_directory)
    config = model_config(directory)
    channel = ServerChannel.open(start.weights, directory, start.lora, base) if start.weights else None
    max_tokens = min(start.max_sequence_tokens, config.max_positions)
    if start.engine.addresses:
        server = VllmServer.join(start.engine.addresses[start.worker_index], max_sequence_tokens=max_tokens)
    else:
        server = VllmServer.start(
            ServerSettings(
                engine=start.engine,
                model_directory=base_of(directory) if is_adapter(directory) else directory,
                model_config=config,
                max_sequence_tokens=start.max_sequence_tokens,
                loads_weights=channel is not None or is_adapter(directory),
                num_threads=context.num_threads,
                worker_index=start.worker_index,
            )
        )
    try:
        server.warm_up()
        if channel is None and (server.is_joined or is_adapter(directory)):
            _load_directory(server, start)
        return VllmEngine(server, channel, start, max_sequence_tokens=max_tokens, wake=context.wake)
    except BaseException:
        server.end()
        raise


def _load_directory(server: VllmServer, start: EngineStart) -> None:
    """Load weights that the server was not started with, and verify that it uses them."""
    model = load_model(Path(start.model_directory))
    swap_weights(server.client, directory_weights(model), keeps_cache=start.engine.kv_on_load == "keep")
    require_agreement(server.client, model, start.engine.dtype)
