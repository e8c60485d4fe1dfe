"""Watches the queues between rollouts and training, and how long the gate has been closed.

Both loops call `look` whenever something may have changed. At most two events per second are emitted, and only if
something has changed.
"""

import asyncio
from collections.abc import Callable

import msgspec

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.events.events import Listener, QueueCounts, Queues

QUEUES_SECONDS = 0.5


class QueueWatch:
    """Watches gate and buffer; `clock` is the run's clock, and it advances only with the event loop."""

    def __init__(
        self,
        gate: StalenessGate,
        buffer: TrajectoryBuffer,
        *,
        group_size: int,
        emit: Listener,
        clock: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._buffer = buffer
        self._group_size = group_size
        self._emit = emit
        self._clock = clock
        self._closed_seconds = 0.0
        """Total of the closed periods that have ended."""
        self._closed_since: float | None = None
        self._last: QueueCounts | None = None
        self._next = 0.0
        """The earliest time of the next event."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def gate_closed_seconds(self) -> float:
        """How long the gate has been closed since the session began."""
        if self._closed_since is None:
            return self._closed_seconds
        return self._closed_seconds + self._clock() - self._closed_since

    def counts(self) -> QueueCounts:
        counts = self._buffer.counts
        return QueueCounts(
            num_running=counts.running,
            num_ready=counts.ready,
            gate_capacity=self._gate.capacity,
            oldest_version=self._buffer.oldest_version,
            gate_closed_seconds=self.gate_closed_seconds,
        )

    def look(self) -> None:
        """Emit an event if something has changed and one is due."""
        self._note_gate()
        if self._timer is None:
            wait = self._next - self._clock()
            if wait <= 0:
                self._tell()
            else:
                self._timer = asyncio.get_running_loop().call_later(wait, self._tell)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _note_gate(self) -> None:
        is_closed = self._gate.capacity < self._group_size
        if is_closed and self._closed_since is None:
            self._closed_since = self._clock()
        elif not is_closed and self._closed_since is not None:
            self._closed_seconds = self.gate_closed_seconds
            self._closed_since = None

    def _tell(self) -> None:
        self.close()
        counts = self.counts()
        before, self._last = self._last, counts
        if (
            before is None
            or msgspec.structs.replace(before, gate_closed_seconds=counts.gate_closed_seconds) != counts
        ):
            now = self._clock()
            self._next = now + QUEUES_SECONDS
            self._emit(Queues(seconds=now, counts=counts))
