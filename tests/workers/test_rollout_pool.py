"""The rollout pool on a cluster: some workers have a place and some wait for one; links stand in for processes."""

import asyncio

import msgspec
import pytest
from pool_clusters import Cluster, settle, version, with_cluster
from tiny_models import make_request

from freerun.errors import PinLostError, RolloutError, WorkerError
from freerun.session.core_lending import CoreLending
from freerun.simulation.virtual_time import stand_still
from freerun.types import EngineStats
from freerun.workers.messages import (
    EngineReady,
    Loaded,
    Report,
)


def offered(cluster: Cluster) -> tuple[int, ...]:
    """The cores that a trainer on core 2 may use now, if the workers are on 0 and 1."""
    offers: list[tuple[int, ...]] = []
    lending = CoreLending(
        trainer_cores=(2,), rollout_cores={"rollout-0": (0,), "rollout-1": (1,)}, offer=offers.append
    )
    for worker, is_busy in cluster.busy:
        lending.note(worker, is_busy=is_busy)
    return offers[-1]


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


def test_a_worker_that_hangs_in_a_load_is_replaced() -> None:
    """It has no request and is not silent, but the run waits for it."""

    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        cluster.links[0].answers_loads, cluster.has_room = False, True
        load = asyncio.create_task(cluster.pool.load(version(1)))
        await asyncio.sleep(190)
        assert cluster.deaths == []
        await asyncio.sleep(20)
        assert cluster.deaths == [True]
        await load
        assert cluster.links[1].loads == [1]

    with_cluster(act, True)


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
