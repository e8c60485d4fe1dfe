"""The pool's record of one rollout worker; it survives when the process is replaced."""

from freerun.config.recipe import RuntimeConfig
from freerun.processes.link import Link
from freerun.processes.patience import awake_clock
from freerun.types import EngineStats, Request
from freerun.workers import messages as m


class PooledWorker:
    """Its link, its pending work, and whether it is lost."""

    def __init__(self, index: int, link: Link[m.FromRollout]) -> None:
        self.index = index
        self.link = link
        self.is_ready = False
        self.is_busy = True
        """As last reported to `on_busy`; reading the model and loading weights count as busy."""
        self.loaded_version: int | None = None
        self.pinned_version: int | None = None
        self.stats = EngineStats()
        self.requests: dict[int, Request] = {}
        self.unsent: list[Request] = []
        self.sessions: set[int] = set()
        """Sessions whose earlier turns it has served, so that it may have their caches parked."""
        self.note_progress()

    @property
    def name(self) -> str:
        return f"rollout-{self.index}"

    @property
    def num_samples(self) -> int:
        return sum(request.num_samples for request in self.requests.values())

    def has_loaded(self, version: int) -> bool:
        return self.loaded_version is not None and self.loaded_version >= version

    def note_progress(self) -> None:
        self._last_progress = awake_clock().time()

    def forget_process(self) -> None:
        """Reset the state that was lost with the process."""
        self.is_ready, self.loaded_version, self.pinned_version = False, None, None
        self.requests, self.unsent, self.sessions = {}, [], set()

    def is_lost(self, config: RuntimeConfig) -> bool:
        """Whether it is silent, takes too long to start, or has work and makes no progress."""
        if not self.link.is_placed:
            self.note_progress()  # the time to start counts from when it has a node
            return False
        seconds = awake_clock().time() - self._last_progress
        if not self.is_ready:
            return seconds > config.start_seconds
        is_stalled = bool(self.requests) and seconds > config.stall_seconds
        return is_stalled or self.link.seconds_silent > config.silence_seconds
