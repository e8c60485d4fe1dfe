"""One rollout worker as the pool knows it; outlives the process when that is replaced."""

from __future__ import annotations

from freerun.config.runtime import RuntimeConfig
from freerun.processes.link import Link
from freerun.processes.patience import awake_clock
from freerun.types import EngineStats, Request
from freerun.workers.messages import FromRollout


class PooledWorker:
    """What it is, what it was sent, and whether it is still worth waiting for."""

    def __init__(self, index: int, link: Link[FromRollout]) -> None:
        self.index = index
        self.link = link
        self.is_ready = False
        self.is_busy = True
        """As it was last told to `on_busy`: reading its model, and loading weights, keeps it busy too."""
        self.loaded_version = -1
        self.pinned_version = -1
        self.stats = EngineStats()
        self.requests: dict[int, Request] = {}
        self.unsent: list[Request] = []
        self.note_progress()

    @property
    def name(self) -> str:
        return f"rollout-{self.index}"

    @property
    def num_samples(self) -> int:
        return sum(request.num_samples for request in self.requests.values())

    def note_progress(self) -> None:
        self._last_progress = awake_clock().time()

    def forget_process(self) -> None:
        """Its process is gone, and with it everything it had."""
        self.is_ready, self.loaded_version, self.pinned_version = False, -1, -1
        self.requests, self.unsent = {}, []

    def is_lost(self, config: RuntimeConfig) -> bool:
        """Whether it is silent, takes too long to start, or makes no progress while it has work."""
        if not self.link.is_placed:
            self.note_progress()  # its time to start begins when it has a place
            return False
        seconds = awake_clock().time() - self._last_progress
        if not self.is_ready:
            return seconds > config.start_seconds
        is_stalled = bool(self.requests) and seconds > config.stall_seconds
        return is_stalled or self.link.seconds_silent > config.silence_seconds
