"""A simulated rollout worker: `batching.py` in virtual time, behind the messages of `workers/messages.py`.

    message ──► at the end of the current step ──► batch ──► many steps as one timer ──► Finished, Loaded, Report

Between two events (an arrival, a finished sequence, a full cache, a load) all steps are equal except for the
growing cache, so they are one timer. A message that arrives meanwhile shortens it to the end of the current
step, because the real worker takes in messages between steps.

Not simulated: evaluations (pinned versions), sessions, text. A completion has tokens without content.
"""

import asyncio
import math
from collections import deque
from typing import Any

import numpy as np

from freerun.simulation.batching import BatchedSequences, SampledGroup, Steps
from freerun.simulation.costs import EngineCosts
from freerun.simulation.lengths import Lengths
from freerun.simulation.worker_link import SimulatedLink
from freerun.types import Completion, EngineStats, Publication
from freerun.workers import messages as m

REPORT_SECONDS_SIMULATED = 10.0
"""Interval of reports: with one per second, reports would be most of the work for many engines over a day."""
_TOKENS = np.zeros(1 << 18, np.int32)
_LOGPROBS = np.zeros(1 << 18, np.float32)


class SimulatedEngine:
    """Implements `worker_link.SimulatedWorker`."""

    def __init__(
        self,
        link: SimulatedLink,
        costs: EngineCosts,
        lengths: Lengths,
        *,
        load_seconds: float,
        start_seconds: float = 0.0,
    ) -> None:
        self._link = link
        self._costs = costs
        self._lengths = lengths
        self._one_load_seconds = load_seconds
        self._start_seconds = start_seconds
        self._loop = asyncio.get_running_loop()
        self._batch: BatchedSequences | None = None
        self._inbox: deque[Any] = deque()
        self._incoming: Publication | None = None
        self._arrived = self._drain_seconds = 0.0
        """When the load arrived, and how long it then waited."""
        self._steps: Steps | None = None
        """The steps in progress until `_timer` fires."""
        self._num_steps = 0
        """How many of them will be made."""
        self._began = 0.0
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._is_loading = False
        self._started = self._next_report = self._idle_since = self._loop.time()
        self._ended: float | None = None
        self.busy_seconds = self.idle_seconds = self.load_seconds = self.recompute_seconds = 0.0
        self.sequence_seconds = 0.0
        """Sum over decoding sequences of their decoding time."""

    def take(self, message: Any) -> None:
        if isinstance(message, m.StartEngine):
            self._batch = BatchedSequences(message.engine)
            self._loop.call_later(self._start_seconds, self._link.tell, m.EngineReady())
            return
        self._inbox.append(message)
        if self._steps is not None:
            self._cut_off()
        elif self._timer is None and not self._is_loading:
            self._idle()
            self._timer = self._loop.call_soon(self._turn)

    @property
    def is_up(self) -> bool:
        """Whether its process has not ended."""
        return self._ended is None

    @property
    def up_seconds(self) -> float:
        """Time from its start to its end, or to now."""
        return (self._loop.time() if self._ended is None else self._ended) - self._started

    def end(self) -> None:
        self._ended = self._loop.time()
        if self._timer is not None:
            self._timer.cancel()

    def stats(self) -> EngineStats:
        batch = self._batch
        assert batch is not None
        return EngineStats(
            version=batch.version,
            num_tokens=batch.num_tokens,
            num_prefill_tokens=batch.num_prefill_tokens,
            num_steps=batch.num_steps,
            num_attended_tokens=batch.num_attended_tokens,
            busy_seconds=self.busy_seconds,
            num_running=len(batch.running),
            num_waiting=len(batch.waiting),
            num_slots=batch.config.num_slots,
            cache_tokens_used=batch.cache_tokens_used,
            cache_tokens=batch.config.cache_tokens,
            num_interrupts=batch.num_interrupts,
            num_loads=batch.num_loads,
            num_preemptions=batch.num_preemptions,
            load_seconds=self.load_seconds,
            num_recomputed_tokens=batch.num_recomputed_tokens,
            decode_seconds=self.busy_seconds - self.recompute_seconds,
            recompute_seconds=self.recompute_seconds,
            idle_seconds=self.idle_seconds,
            up_seconds=self.up_seconds,
        )

    # ---- a turn: between two steps --------------------------------------------------------------

    def _turn(self) -> None:
        """Between two steps: finish those in progress, take in messages, load weights, and begin the next ones."""
        self._timer = None
        if not self.is_up:
            return
        if self._steps is not None:
            self._finish_steps()
        self._take_in_messages()
        if self._begin_load():
            return
        self._report()
        self._begin_steps()

    def _take_in_messages(self) -> None:
        assert self._batch is not None
        # Messages behind a load are meant for the new weights.
        while self._inbox and (self._incoming is None or self._batch.is_draining):
            match self._inbox.popleft():
                case m.Generate(requests=requests):
                    for request in requests:
                        self._batch.submit(request, self._lengths_of(request))
                case m.Load(published=published):
                    self._incoming, self._arrived = published, self._loop.time()
                    drains = self._batch.config.kv_on_load == "drain"
                    self._batch.is_draining = drains and self._batch.version is not None
                case m.Abort(request_ids=request_ids):
                    for request_id in request_ids:
                        self._batch.abort(request_id)

    def _lengths_of(self, request: Any) -> list[int]:
        cap, first = request.sampling.max_completion_tokens, request.sample
        lengths = self._lengths.of_group(request.ordinal, first + request.num_samples)[first:]
        return [min(cap, length) for length in lengths]

    def _begin_load(self) -> bool:
        """Whether the engine now pauses to load new weights."""
        assert self._batch is not None
        if self._incoming is None or (self._batch.is_draining and self._batch.has_begun):
            return False
        self._is_loading, self._drain_seconds = True, self._loop.time() - self._arrived
        self._loop.call_later(self._one_load_seconds, self._finish_load)
        return True

    def _finish_load(self) -> None:
        if not self.is_up:
            return
        assert self._batch is not None
        assert self._incoming is not None
        published, self._incoming, self._is_loading = self._incoming, None, False
        num_interrupts = self._batch.load(published.version)
        self.load_seconds += self._one_load_seconds
        self._link.tell(
            m.Loaded(
                published=published,
                load_seconds=self._one_load_seconds,
                drain_seconds=self._drain_seconds,
                num_interrupts=num_interrupts,
            )
        )
        self._next_report = 0.0
        self._idle_since = self._loop.time()
        self._turn()

    def _report(self) -> None:
        if self._loop.time() >= self._next_report:
            self._next_report = self._loop.time() + REPORT_SECONDS_SIMULATED
            self._link.tell(m.Report(stats=self.stats()))

    # ---- steps ----------------------------------------------------------------------------------

    def _begin_steps(self) -> None:
        assert self._batch is not None
        steps = self._batch.plan() if self._batch.version is not None else None
        self._began = self._loop.time()
        if steps is None:
            self._idle_since = self._began
            return
        self._steps, self._num_steps = steps, steps.num_steps
        self._timer = self._loop.call_later(self._seconds(steps.num_steps), self._turn)

    def _seconds(self, num_steps: int) -> float:
        """Duration of the first of the steps in progress; the cache grows by one token per decoding sequence."""
        steps, costs = self._steps, self._costs
        assert steps is not None
        first = costs.step_seconds(steps.num_decoding, steps.num_cached)
        if steps.num_prefill:
            return first + costs.prefill_seconds(steps.num_prefill, steps.mean_context)
        grown = steps.num_cached + (num_steps - 1) * steps.num_decoding
        return num_steps * (first + costs.step_seconds(steps.num_decoding, grown)) / 2

    def _cut_off(self) -> None:
        """Make only the steps that have begun, because a message waits."""
        assert self._steps is not None
        elapsed = self._loop.time() - self._began
        low, high = 1, self._num_steps
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._seconds(middle) >= elapsed - 1e-9 else (middle + 1, high)
        if low < self._num_steps:
            assert self._timer is not None
            self._timer.cancel()
            self._num_steps = low
            self._timer = self._loop.call_at(max(self._loop.time(), self._began + self._seconds(low)), self._turn)

    def _finish_steps(self) -> None:
        assert self._batch is not None
        assert self._steps is not None
        steps, seconds = self._steps, self._loop.time() - self._began
        self._steps = None
        self.busy_seconds += seconds
        self.recompute_seconds += seconds * steps.recomputed_share
        self.sequence_seconds += seconds * steps.num_decoding
        if finished := self._batch.advance(steps, self._num_steps):
            completions = {group.request.request_id: _completions(group) for group in finished}
            self._link.tell(m.Finished(completions=completions))

    def _idle(self) -> None:
        self.idle_seconds += self._loop.time() - self._idle_since


def _completions(group: SampledGroup) -> tuple[Completion, ...]:
    cap = group.request.sampling.max_completion_tokens
    return tuple(
        Completion(
            token_ids=_zeros(_TOKENS, sequence.length),
            logprobs=_zeros(_LOGPROBS, sequence.length),
            spans=spans,
            finish_reason="length" if sequence.length == cap else "stop",
            text="",
        )
        for sequence, spans in zip(group.sequences, group.spans(), strict=True)
    )


def _zeros(zeros: np.ndarray, length: int) -> np.ndarray:
    """A view of shared zeros: completions take no further memory."""
    return zeros[:length] if length <= len(zeros) else np.zeros(math.ceil(length), zeros.dtype)
