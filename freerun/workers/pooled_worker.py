"""The pool's record of one rollout worker; it survives when the process is replaced."""

from collections import Counter

from freerun.config.recipe import RuntimeConfig
from freerun.processes.link import Link
from freerun.processes.patience import awake_clock
from freerun.types import Doing, EngineStats, ProcessState, Request
from freerun.workers import messages as m


def worker_name(index: int) -> str:
    return f"rollout-{index}"


class PooledWorker:
    """Its link, its pending work, and whether it is lost."""

    def __init__(self, index: int, link: Link[m.FromRollout]) -> None:
        self.index = index
        self.link = link
        self._clock = awake_clock()
        self.is_ready = False
        self.is_busy = True
        """Last value reported to `on_busy`; reading the model and loading weights count as busy."""
        self.loaded_version: int | None = None
        self.pinned_version: int | None = None
        self.stats = EngineStats()
        self.requests: dict[int, Request] = {}
        """Changed only by `take_on` and `put_down`."""
        self.num_samples = 0
        """Number of samples in `requests`."""
        self._num_live = 0
        """Number of requests that are not for a pinned version."""
        self.num_of_prompt: Counter[int] = Counter()
        """Number of requests by ordinal of their prompt; the worker computes each prompt once."""
        self.unsent: list[Request] = []
        self.sessions: set[int] = set()
        """Sessions whose earlier turns it has served: it may have their caches parked."""
        self.is_retiring = False
        """Whether it is retiring: it gets no requests, except for a pinned version, and exits once finished."""
        self.is_dismissed = False
        """Whether it has finished retiring and was told to exit."""
        self.told_state: ProcessState = "starting"
        """Last state reported to `on_doing`."""
        self.note_progress()

    @property
    def name(self) -> str:
        return worker_name(self.index)

    def take_on(self, request: Request) -> None:
        """Assign a request to this worker."""
        self.requests[request.request_id] = request
        self.num_samples += request.num_samples
        self._num_live += request.pinned_version is None
        self.num_of_prompt[request.ordinal] += 1

    def put_down(self, request_id: int) -> Request | None:
        """Remove a request from this worker; None if it did not have it."""
        request = self.requests.pop(request_id, None)
        if request is not None:
            self.num_samples -= request.num_samples
            self._num_live -= request.pinned_version is None
            self.num_of_prompt[request.ordinal] -= 1
            if not self.num_of_prompt[request.ordinal]:
                del self.num_of_prompt[request.ordinal]
        return request

    @property
    def state(self) -> ProcessState:
        """What it does, judged by what it was sent: never older than the controller's reports."""
        if not self.is_ready:
            return "starting"
        if not self.requests:
            return "waiting"
        return "generating" if self._num_live else "evaluating"

    @property
    def doing(self) -> Doing:
        """The state with numbers, from the worker's last report if that fits the state."""
        state = self.state
        if state == "waiting":
            return Doing(state, "the gate to admit a rollout" if self.loaded_version is not None else "weights")
        if state == "starting":
            return Doing(state)
        reported = self.stats.num_running if state == "generating" else self.stats.num_evaluating
        return Doing(state, num_done=reported or self.num_samples)

    @property
    def is_finished(self) -> bool:
        """Whether it is retiring and has nothing left to do."""
        return self.is_retiring and not self.requests and self.pinned_version is None

    def has_loaded(self, version: int) -> bool:
        return self.loaded_version is not None and self.loaded_version >= version

    def note_progress(self) -> None:
        self._last_progress = self._clock.time()

    def forget_process(self) -> None:
        """Reset the state that was lost with the process."""
        self.is_ready, self.loaded_version, self.pinned_version = False, None, None
        for request_id in list(self.requests):
            self.put_down(request_id)
        self.unsent, self.sessions = [], set()

    def is_lost(self, config: RuntimeConfig) -> bool:
        """Whether it is silent, takes too long to start, or has work but makes no progress."""
        if not self.link.is_placed:
            self.note_progress()  # the time to start counts only once it has a node
            return False
        seconds = self._clock.time() - self._last_progress
        if not self.is_ready:
            return seconds > config.start_seconds
        # A load is work too: an engine that hangs in one would block the run, which waits for all to confirm it.
        is_stalled = self.is_busy and seconds > config.stall_seconds
        return is_stalled or self.link.seconds_silent > config.silence_seconds
