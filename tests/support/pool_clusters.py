"""A rollout pool on a cluster: links stand in for its workers, placed as a test says."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.config.recipe import RuntimeConfig
from freerun.processes.frames import to_frame
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import EngineStats, Publication
from freerun.workers.messages import (
    EndSession,
    EngineReady,
    Finished,
    FromRollout,
    Generate,
    Load,
    Loaded,
    StartEngine,
)
from freerun.workers.rollout_pool import RolloutPool


class FakeLink:
    """A worker that starts when it is placed, and answers everything at once unless it is held up."""

    def __init__(self, name: str, *, is_placed: bool) -> None:
        self.name = name
        self.is_placed = is_placed
        self.is_alive = True
        self.was_taken_away = False
        self.seconds_silent = 0.0
        self.answers_loads = True
        self.answers_requests = True
        self.sent: list[Any] = []
        self.inbox: asyncio.Queue[FromRollout | None] = asyncio.Queue()
        if is_placed:
            self.inbox.put_nowait(EngineReady())

    def place(self) -> None:
        self.is_placed = True
        self.inbox.put_nowait(EngineReady())

    def send(self, message: Any) -> None:
        to_frame(message)
        self.sent.append(message)
        if isinstance(message, Load) and self.answers_loads:
            self.inbox.put_nowait(Loaded(published=message.published))
        if isinstance(message, Generate) and self.answers_requests:
            for request in message.requests:
                self.inbox.put_nowait(Finished(completions={request.request_id: ()}))

    async def receive(self) -> FromRollout | None:
        return await self.inbox.get()

    def kill(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self.inbox.put_nowait(None)

    async def wait(self, timeout_seconds: float) -> object:
        return None

    def describe_end(self) -> str:
        return f"{self.name} waits for room in the cluster: 1 CPU wanted, free: 0 CPU"

    @property
    def kinds(self) -> list[str]:
        return [type(message).__name__ for message in self.sent]

    @property
    def generated(self) -> list[int]:
        return [r.request_id for message in self.sent if isinstance(message, Generate) for r in message.requests]

    @property
    def ended(self) -> list[int]:
        return [message.session for message in self.sent if isinstance(message, EndSession)]

    @property
    def loads(self) -> list[int]:
        return [message.published.version for message in self.sent if isinstance(message, Load)]


class Cluster:
    """A pool whose workers are placed as the test says; `has_room` is for successors."""

    def __init__(self, *placed: bool, on_report: Callable[[str, EngineStats], object]) -> None:
        self.links: list[FakeLink] = []
        self.deaths: list[bool] = []
        self.busy: list[tuple[str, bool]] = []
        self.has_room = False
        self._placed = placed
        self.pool = RolloutPool(
            spawn=self._spawn,
            start_message=StartEngine(
                model_directory="",
                engine=EngineConfig(),
                max_sequence_tokens=8,
                seed=0,
                lora=LoraConfig(),
                base_directory="",
            ),
            num_workers=len(placed),
            config=RuntimeConfig(start_seconds=100, stall_seconds=200),
            on_report=on_report,  # type: ignore[arg-type]
            on_death=lambda worker, reason, is_restarted: self.deaths.append(is_restarted),
            on_busy=lambda worker, is_busy: self.busy.append((worker, is_busy)),
        )

    async def _spawn(self, index: int) -> FakeLink:
        is_first = len(self.links) < len(self._placed)
        link = FakeLink(f"rollout-{index}", is_placed=self._placed[index] if is_first else self.has_room)
        self.links.append(link)
        return link


def with_cluster(
    act: Callable[[Cluster], Awaitable[None]],
    *placed: bool,
    on_report: Callable[[str, EngineStats], object] = lambda worker, stats: None,
) -> None:
    async def main() -> None:
        cluster = Cluster(*placed, on_report=on_report)
        try:
            await act(cluster)
        finally:
            await cluster.pool.close()

    run_in_virtual_time(main())


def version(number: int) -> Publication:
    return Publication(version=number, checksum=str(number))


async def settle() -> None:
    await asyncio.sleep(0.1)
