"""An engine that can keep one version: held-out evaluation while rollouts use newer ones.

    live     version  7 ─ 7 ─ 8 ─── 8 ─── 9 ─── 9 ─── 9 ─ 10      loads as they come
    pinned               └─ 8 ─── 8 ─── 8 ─── 8 ─── 8 ┘           pinned at 8 until it is released

`pin` creates a second engine with its own cache and parked caches. While both have work their steps alternate,
so an evaluation takes at most every other step and never a rollout's slot. Both read the same weights until the
next swap, which leaves the old packed matrices to the pinned engine and gives it a copy of everything that is
not packed. An evaluation that outlasts its version needs this memory until `unpin`.
"""

import time
from collections.abc import Mapping

import msgspec
from torch import Tensor

from freerun.engine.engine import Engine, NewWeights
from freerun.errors import RequestError, WeightsError
from freerun.types import Completion, EngineStats, Request


class PinnableEngine:
    """Routes requests to the live engine, or to the pinned engine if they name its version."""

    def __init__(self, live: Engine) -> None:
        self._live = live
        self._pinned: Engine | None = None
        self._is_pinned_next = False
        self._past_work = EngineStats()
        """Summed work counters of earlier pinned engines."""

    @property
    def has_work(self) -> bool:
        return self._live.has_work or (self._pinned is not None and self._pinned.has_work)

    def submit(self, request: Request) -> None:
        self._engine_for(request.pinned_version).submit(request)

    def abort(self, request_id: int) -> None:
        self._live.abort(request_id)
        if self._pinned is not None:
            self._pinned.abort(request_id)

    def end_session(self, session: int) -> None:
        """Drop what the session has parked in either engine."""
        self._live.end_session(session)
        if self._pinned is not None:
            self._pinned.end_session(session)

    def drain(self) -> bool:
        """Let the live engine finish its running sequences; see `Engine.drain`."""
        return self._live.drain()

    def load(self, version: int, weights: Mapping[str, Tensor]) -> int:
        """Prepare and swap at once; returns the number of interrupted sequences of the live engine."""
        return self.swap(self.prepare(version, weights))

    def prepare(self, version: int, weights: Mapping[str, Tensor]) -> NewWeights:
        """Prepare new weights for the live engine; may run on any thread, during steps of both engines."""
        return self._live.prepare(version, weights)

    def swap(self, new: NewWeights) -> int:
        """Give the live engine new weights; returns the number of its interrupted sequences."""
        if self._pinned is not None and self._pinned.model is self._live.model:
            begin = time.perf_counter()
            self._pinned.keep_weights()
            self._live.add_load_seconds(time.perf_counter() - begin)
        return self._live.swap(new)

    def add_load_seconds(self, seconds: float) -> None:
        self._live.add_load_seconds(seconds)

    def pin(self, version: int) -> None:
        """Keep the live engine's weights, which must be those of `version`, for requests that name it."""
        if self._live.version != version:
            raise WeightsError(f"version {version} cannot be pinned: the engine holds {self._live.version}")
        self.unpin()
        self._pinned = self._live.twin()

    def unpin(self) -> None:
        """Release the pinned version and abort its requests."""
        if self._pinned is not None:
            self._past_work = _with_work_of(self._past_work, self._pinned.stats())
            self._pinned = None

    def step(self) -> list[tuple[Request, tuple[Completion, ...]]]:
        """One forward pass of one engine, alternating while both have work; returns the requests it finished."""
        pinned = self._pinned if self._pinned is not None and self._pinned.has_work else None
        if pinned is not None and (self._is_pinned_next or not self._live.has_work):
            self._is_pinned_next = False
            return pinned.step()
        self._is_pinned_next = True
        return self._live.step()

    def stats(self) -> EngineStats:
        """The live engine's statistics; work counters include both engines."""
        stats = _with_work_of(self._live.stats(), self._past_work)
        if self._pinned is None:
            return stats
        pinned = self._pinned.stats()
        num_evaluating = pinned.num_running + pinned.num_waiting
        return msgspec.structs.replace(_with_work_of(stats, pinned), num_evaluating=num_evaluating)

    def _engine_for(self, pinned_version: int | None) -> Engine:
        if pinned_version is None:
            return self._live
        if self._pinned is None or self._pinned.version != pinned_version:
            raise RequestError(f"version {pinned_version} is not pinned here")
        return self._pinned


def _with_work_of(stats: EngineStats, other: EngineStats) -> EngineStats:
    """`stats` with the work counters of `other` added."""
    return msgspec.structs.replace(
        stats,
        num_tokens=stats.num_tokens + other.num_tokens,
        num_prefill_tokens=stats.num_prefill_tokens + other.num_prefill_tokens,
        num_steps=stats.num_steps + other.num_steps,
        num_attended_tokens=stats.num_attended_tokens + other.num_attended_tokens,
        busy_seconds=stats.busy_seconds + other.busy_seconds,
        evaluate_seconds=stats.evaluate_seconds + other.busy_seconds,
        num_adopted_tokens=stats.num_adopted_tokens + other.num_adopted_tokens,
    )
