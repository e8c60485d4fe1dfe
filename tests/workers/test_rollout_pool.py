"""The rollout pool on a cluster: some workers have a place and some wait for one; links stand in for processes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tiny_models import make_request
from virtual_time import run_in_virtual_time, stand_still

from freerun.config.engine import EngineConfig
from freerun.config.lora import LoraConfig
from freerun.config.recipe import RuntimeConfig
from freerun.errors import PinLostError, RolloutError, WorkerError
from freerun.processes.frames import to_frame
from freerun.session.core_lending import CoreLending
from freerun.types import EngineStats, Publication, Request
from freerun.workers.messages import (
    EndSession,
    EngineReady,
    Finished,
    FromRollout,
    Generate,
    Load,
    Loaded,
    Report,
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
                self.inbox.put_nowait(Finished(request_id=request.request_id, completions=()))

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


def offered(cluster: Cluster) -> tuple[int, ...]:
    """The cores that a trainer on core 2 may use now, if the workers are on 0 and 1."""
    offers: list[tuple[int, ...]] = []
    lending = CoreLending(
        trainer_cores=(2,), rollout_cores={"rollout-0": (0,), "rollout-1": (1,)}, offer=offers.append
    )
    for worker, is_busy in cluster.busy:
        lending.note(worker, is_busy=is_busy)
    return offers[-1]


def version(number: int) -> Publication:
    return Publication(version=number, checksum=str(number))


async def settle() -> None:
    await asyncio.sleep(0.1)


def test_the_run_begins_with_the_workers_that_have_a_place() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        assert cluster.pool.num_ready == 1
        await cluster.pool.load(version(0))
        await cluster.pool.generate(make_request(1))
        assert cluster.links[0].kinds == ["StartEngine", "Load", "Generate"]
        assert cluster.links[1].kinds == ["StartEngine"]

    with_cluster(act, True, False)


def test_a_worker_is_busy_from_its_first_request_to_its_last_answer() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        cluster.busy.clear()
        await asyncio.gather(*(cluster.pool.generate(make_request(index)) for index in range(3)))
        assert cluster.busy == [("rollout-0", True), ("rollout-0", False)]

    with_cluster(act, True)


def test_a_worker_is_busy_while_it_loads() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        assert cluster.busy == [("rollout-0", False)]
        cluster.links[0].answers_loads = False
        load = asyncio.create_task(cluster.pool.load(version(0)))
        await settle()
        assert cluster.busy[1:] == [("rollout-0", True)]
        cluster.links[0].inbox.put_nowait(Loaded(published=version(0)))
        await load
        assert cluster.busy[2:] == [("rollout-0", False)]

    with_cluster(act, True)


def test_a_worker_that_dies_while_its_core_is_lent_needs_it_until_its_successor_has_loaded() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        assert offered(cluster) == (0, 1, 2)
        cluster.links[0].kill()
        await settle()
        assert offered(cluster) == (1, 2)
        cluster.links[2].answers_loads = False
        cluster.links[2].place()
        await settle()
        assert offered(cluster) == (1, 2)
        cluster.links[2].inbox.put_nowait(Loaded(published=version(0)))
        await settle()
        assert offered(cluster) == (0, 1, 2)

    with_cluster(act, True, True)


def test_a_worker_that_finds_a_place_later_gets_the_newest_weights_and_then_work() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        await cluster.pool.load(version(1))
        cluster.links[1].place()
        await settle()
        assert cluster.pool.num_ready == 2
        await asyncio.gather(*(cluster.pool.generate(make_request(index)) for index in range(2)))
        assert cluster.links[1].kinds == ["StartEngine", "Load", "Generate"]
        assert cluster.links[1].loads == [1]

    with_cluster(act, True, False)


def test_a_wait_for_a_place_is_neither_timed_out_nor_a_failure() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await asyncio.sleep(1000)
        assert cluster.links[1].is_alive
        cluster.links[1].is_placed = True  # from now on it has 100 s to start
        await asyncio.sleep(90)
        assert cluster.links[1].is_alive
        cluster.links[1].inbox.put_nowait(EngineReady())
        await settle()
        assert (cluster.pool.num_ready, cluster.deaths) == (2, [])

    with_cluster(act, True, False)


def test_a_request_that_cannot_be_sent_fails_and_says_why() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        request = make_request(1)
        sampling = msgspec.structs.replace(request.sampling, top_k=10**40)
        with pytest.raises(RolloutError, match="the request cannot be sent: OverflowError"):
            await cluster.pool.generate(msgspec.structs.replace(request, sampling=sampling))
        await cluster.pool.generate(make_request(2))

    with_cluster(act, True)


def test_an_error_while_messages_are_taken_in_ends_the_run() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        cluster.links[0].inbox.put_nowait(Report(stats=EngineStats()))
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(cluster.pool.wait_for_loss(), timeout=10)

    with_cluster(act, True, on_report=lambda worker, stats: 1 // 0)


def test_no_worker_is_lost_because_the_controller_was_stopped() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        cluster.links[0].answers_loads = False
        load = asyncio.create_task(cluster.pool.load(version(1)))
        cluster.links[1].is_placed = True  # and starts
        for _ in range(5):
            await asyncio.sleep(15)
            stand_still(1000)
        await asyncio.sleep(1)
        assert not load.done()
        cluster.links[0].inbox.put_nowait(Loaded(published=version(1)))
        await load
        assert (cluster.deaths, cluster.links[1].is_alive) == ([], True)

    with_cluster(act, True, False)


def test_a_load_waits_for_a_worker_that_became_ready_while_it_was_under_way() -> None:
    """Or the next version but one would overwrite the buffer that it is still reading."""

    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        cluster.links[0].answers_loads = cluster.links[1].answers_loads = False
        load = asyncio.create_task(cluster.pool.load(version(1)))
        await settle()
        cluster.links[1].place()
        await settle()
        assert cluster.links[1].loads == [1]
        cluster.links[0].inbox.put_nowait(Loaded(published=version(1)))
        await settle()
        assert not load.done()
        cluster.links[1].inbox.put_nowait(Loaded(published=version(1)))
        await load

    with_cluster(act, True, False)


def test_a_version_that_nobody_has_is_not_loaded() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        cluster.links[0].kill()
        await settle()
        load = asyncio.create_task(cluster.pool.load(version(0)))
        await settle()
        assert not load.done()
        cluster.links[1].place()
        await load
        assert cluster.links[1].loads == [0]

    with_cluster(act, True)


def test_work_of_a_lost_node_goes_to_the_others_and_its_successor_waits_for_room() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        cluster.links[0].kill()
        cluster.links[0].sent.clear()
        requests = [asyncio.create_task(cluster.pool.generate(make_request(index))) for index in range(4)]
        await asyncio.gather(*requests)
        assert cluster.deaths == [True]
        assert "Generate" in cluster.links[1].kinds
        assert cluster.links[2].kinds == ["StartEngine"]
        assert cluster.pool.num_ready == 1

    with_cluster(act, True, True)


def test_requests_that_nobody_could_take_go_to_whoever_is_ready_first() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        for link in cluster.links[:2]:
            link.kill()
        await settle()
        work = asyncio.gather(*(cluster.pool.generate(make_request(index)) for index in range(4)))
        await settle()
        assert not work.done()
        cluster.links[3].place()
        await work
        assert cluster.links[2].kinds == ["StartEngine"]

    with_cluster(act, True, True)


def test_a_pinned_version_that_only_an_unplaced_worker_could_have_had_is_lost_with_the_next_load() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        pinned = cluster.pool.pin(0)
        cluster.links[0].kill()
        await settle()
        request = asyncio.create_task(pinned.generate(make_request(1)))
        await settle()
        assert not request.done()
        load = asyncio.create_task(cluster.pool.load(version(1)))
        with pytest.raises(PinLostError, match="version 0 is gone"):
            await request
        cluster.links[1].place()
        await load

    with_cluster(act, True)


def test_a_run_that_finds_no_place_at_all_says_what_it_wants() -> None:
    async def act(cluster: Cluster) -> None:
        with pytest.raises(WorkerError, match=r"no rollout worker has a place in the cluster: .* 1 CPU wanted"):
            await cluster.pool.start()
        assert cluster.pool.missing()

    with_cluster(act, False, False)


def test_nothing_is_missing_while_a_worker_can_generate_or_starts() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        assert cluster.pool.missing() == ""

    with_cluster(act, True, False)


def test_a_place_that_is_found_late_leaves_the_worker_its_time_to_start() -> None:
    async def act(cluster: Cluster) -> None:
        start = asyncio.create_task(cluster.pool.start())
        await asyncio.sleep(90)
        cluster.links[0].is_placed = True
        await asyncio.sleep(90)
        assert not start.done()
        cluster.links[0].place()
        await start

    with_cluster(act, False)


def test_requests_do_not_wait_for_ever_for_a_worker_that_finds_no_place() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        cluster.links[0].kill()
        await asyncio.sleep(1000)  # nobody waits for anything
        assert cluster.pool.missing()
        request = asyncio.create_task(cluster.pool.generate(make_request(1)))
        with pytest.raises(WorkerError, match=r"waited 200 s; no rollout worker has a place"):
            await asyncio.wait_for(cluster.pool.wait_for_loss(), timeout=300)
        request.cancel()

    with_cluster(act, True)


@pytest.mark.parametrize("was_taken_away", [True, False])
def test_a_worker_lost_with_its_machine_before_it_was_ready_is_replaced(was_taken_away: bool) -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        cluster.links[1].is_placed = True
        cluster.links[1].was_taken_away = was_taken_away
        cluster.links[1].kill()
        await settle()
        assert cluster.deaths == [was_taken_away]
        assert len(cluster.links) == (3 if was_taken_away else 2)

    with_cluster(act, True, False)


def turn_of(session: int, request_id: int, *, num_samples: int = 1) -> Request:
    return msgspec.structs.replace(make_request(request_id, num_samples=num_samples), session=session)


def test_later_turns_go_where_the_session_was_served_before() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        await asyncio.gather(*(cluster.pool.generate(turn_of(session, session)) for session in range(4)))
        assert [link.generated for link in cluster.links] == [[0, 2], [1, 3]]
        for session in (3, 1, 0, 1):
            await cluster.pool.generate(turn_of(session, 10 + session))
        assert [link.generated[2:] for link in cluster.links] == [[10], [13, 11, 11]]

    with_cluster(act, True, True)


def test_a_turn_does_not_wait_behind_a_whole_batch_for_its_cache() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        await cluster.pool.generate(turn_of(7, 0))
        assert cluster.links[0].generated == [0]
        num_slots = EngineConfig().num_slots
        cluster.links[0].answers_requests = cluster.links[1].answers_requests = False
        crowd = [
            asyncio.create_task(cluster.pool.generate(turn_of(7, 1, num_samples=num_slots))),
            asyncio.create_task(cluster.pool.generate(turn_of(7, 2))),
            asyncio.create_task(cluster.pool.generate(turn_of(7, 3))),
        ]
        await settle()
        # One batch more than elsewhere is worth the cache, one sample more than that is not.
        assert [link.generated for link in cluster.links] == [[0, 1, 2], [3]]
        for request in crowd:
            request.cancel()

    with_cluster(act, True, True)


def test_a_replaced_worker_has_nothing_parked() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        await cluster.pool.generate(turn_of(7, 0))
        cluster.has_room = True
        cluster.links[0].kill()
        await settle()
        cluster.pool.end_session(7)
        await cluster.pool.generate(turn_of(8, 1))
        assert cluster.links[2].kinds == ["StartEngine", "Load", "Generate"]

    with_cluster(act, True, True)


def test_the_workers_that_served_a_session_hear_of_its_end() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        await asyncio.gather(*(cluster.pool.generate(turn_of(session, session)) for session in range(3)))
        pinned = cluster.pool.pin(0)
        await pinned.generate(turn_of(9, 9))
        for session in (1, 0, 99):
            cluster.pool.end_session(session)
        cluster.pool.end_session(0)  # it is forgotten by now
        pinned.end_session(9)
        assert [link.ended for link in cluster.links] == [[0, 9], [1]]

    with_cluster(act, True, True)
