"""Rollout workers that retire and that are added; links stand in for processes."""

import asyncio

from pool_clusters import Cluster, settle, version, with_cluster
from tiny_models import make_request

from freerun.types import EngineStats
from freerun.workers.messages import EngineReady, Finished, Report


async def begin(cluster: Cluster) -> None:
    await cluster.pool.start()
    await cluster.pool.load(version(0))


def ask(cluster: Cluster, *numbers: int) -> list[asyncio.Task[object]]:
    return [asyncio.create_task(cluster.pool.generate(make_request(number))) for number in numbers]


def hold_answers(cluster: Cluster) -> None:
    for link in cluster.links:
        link.answers_requests = False


def answer(cluster: Cluster, index: int) -> None:
    """All that the worker was sent."""
    link = cluster.links[index]
    for number in link.generated:
        link.inbox.put_nowait(Finished(completions={number: ()}))


def test_a_worker_that_retires_finishes_its_requests_and_gets_no_more() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        hold_answers(cluster)
        asked = ask(cluster, 1, 2)
        await settle()
        assert [link.generated for link in cluster.links] == [[1], [2]]
        assert cluster.pool.retire() == "rollout-1"
        asked += ask(cluster, 3, 4)
        await settle()
        assert [link.generated for link in cluster.links] == [[1, 3, 4], [2]]
        assert (cluster.pool.num_workers, cluster.pool.num_ready, cluster.pool.num_leaving) == (1, 1, 1)
        assert cluster.links[1].is_alive
        answer(cluster, 1)
        await settle()
        assert not cluster.links[1].is_alive
        assert asked[1].done()
        answer(cluster, 0)
        await asyncio.gather(*asked)
        assert (cluster.deaths, len(cluster.links), cluster.pool.num_leaving) == ([], 2, 0)

    with_cluster(act, True, True)


def test_the_one_with_the_least_to_do_retires_and_the_last_one_stays() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        hold_answers(cluster)
        asked = ask(cluster, 1, 2)
        await settle()
        assert cluster.pool.retire() == "rollout-2"
        assert cluster.pool.retire() == "rollout-1"
        assert cluster.pool.retire() == ""
        assert cluster.pool.num_workers == 1
        for task in asked:
            task.cancel()
        await settle()
        assert [link.is_alive for link in cluster.links] == [True, False, False]

    with_cluster(act, True, True, True)


def test_a_worker_without_a_place_retires_first_and_its_requests_are_dispatched_again() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        assert cluster.pool.retire() == "rollout-1"
        await settle()
        assert [link.is_alive for link in cluster.links] == [True, False, True]
        await cluster.pool.generate(make_request(1))

    with_cluster(act, True, False, True)


def test_none_retires_while_no_other_is_ready() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        cluster.links[1].kill()
        assert cluster.pool.retire() == ""
        await settle()
        assert cluster.pool.retire() == "rollout-1", "its successor, which waits for a place"
        await settle()
        assert (cluster.pool.num_workers, cluster.pool.num_ready) == (1, 1)

    with_cluster(act, True, True)


def test_a_worker_that_dies_while_it_retires_has_no_successor_and_its_requests_start_again() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        hold_answers(cluster)
        asked = ask(cluster, 1, 2)
        await settle()
        assert cluster.pool.retire() == "rollout-1"
        cluster.links[1].kill()
        await settle()
        assert cluster.links[0].generated == [1, 2]
        assert (cluster.deaths, len(cluster.links)) == ([False], 2)
        answer(cluster, 0)
        await asyncio.gather(*asked)

    with_cluster(act, True, True)


def test_one_that_retires_still_loads_and_a_load_waits_for_it() -> None:
    """It may read the buffer that the next version but one overwrites."""

    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        hold_answers(cluster)
        asked = ask(cluster, 1, 2)
        await settle()
        cluster.pool.retire()
        cluster.links[1].answers_loads = False
        load = asyncio.create_task(cluster.pool.load(version(1)))
        await settle()
        assert cluster.links[1].loads == [0, 1]
        assert not load.done()
        answer(cluster, 1)
        await load
        assert not cluster.links[1].is_alive
        answer(cluster, 0)
        await asyncio.gather(*asked)

    with_cluster(act, True, True)


def test_one_that_keeps_a_version_serves_its_evaluation_to_the_end() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        pinned = cluster.pool.pin(0)
        assert cluster.pool.retire() == "rollout-1"
        await asyncio.gather(*(pinned.generate(make_request(number)) for number in range(2)))
        await cluster.pool.generate(make_request(2))
        assert cluster.links[0].generated == [0, 2]
        assert cluster.links[1].generated == [1]
        assert cluster.links[1].is_alive
        pinned.release()
        await settle()
        assert not cluster.links[1].is_alive
        cluster.pool.pin(0).release()
        assert cluster.links[1].kinds.count("Pin") == 1

    with_cluster(act, True, True)


def test_a_worker_that_is_added_gets_the_newest_weights_then_work() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        assert cluster.pool.retire() == "rollout-1"
        assert cluster.pool.add() == "", "the one that leaves is still there"
        await settle()
        await cluster.pool.load(version(1))
        cluster.has_room = True
        assert cluster.pool.add() == "rollout-1"
        assert cluster.pool.num_workers == 2
        await settle()
        assert cluster.links[2].name == "rollout-1"
        assert cluster.links[2].loads == [1]
        await asyncio.gather(*(cluster.pool.generate(make_request(index)) for index in range(2)))
        assert cluster.links[2].kinds == ["StartEngine", "Load", "Generate"]
        assert cluster.pool.add() == "", "no more than engine.num_workers"

    with_cluster(act, True, True)


def test_one_that_has_not_finished_is_kept_instead_of_starting_another() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        hold_answers(cluster)
        asked = ask(cluster, 1, 2)
        await settle()
        assert cluster.pool.retire() == "rollout-1"
        assert cluster.pool.add() == "rollout-1"
        answer(cluster, 0)
        answer(cluster, 1)
        await asyncio.gather(*asked)
        await settle()
        assert all(link.is_alive for link in cluster.links)
        assert (cluster.pool.num_workers, len(cluster.links)) == (2, 2)

    with_cluster(act, True, True)


def test_a_worker_that_is_added_may_wait_for_a_place_and_may_retire_again() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        cluster.pool.retire()
        await settle()
        cluster.pool.add()
        await asyncio.sleep(1000)
        assert (cluster.pool.num_workers, cluster.pool.num_ready) == (2, 1)
        assert cluster.pool.retire() == "rollout-1"
        cluster.links[2].inbox.put_nowait(EngineReady())
        await settle()
        assert (cluster.pool.num_workers, cluster.pool.num_ready, cluster.deaths) == (1, 1, [])

    with_cluster(act, True, True)


def test_one_that_retires_offers_no_slots_and_its_tokens_still_count_as_progress() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        hold_answers(cluster)
        asked = ask(cluster, 1, 2)
        await settle()
        cluster.pool.retire()
        stats = EngineStats(num_tokens=70, num_slots=8, num_running=1, cache_tokens=100, cache_tokens_used=90)
        cluster.links[1].inbox.put_nowait(Report(stats=stats))
        await settle()
        assert [(each.num_tokens, each.num_slots) for each in cluster.pool.stats()] == [(0, 0), (70, 0)]
        answer(cluster, 0)
        answer(cluster, 1)
        await asyncio.gather(*asked)

    with_cluster(act, True, True)


def test_the_cores_of_a_retired_worker_are_free_until_it_is_added_again() -> None:
    async def act(cluster: Cluster) -> None:
        await begin(cluster)
        cluster.busy.clear()
        cluster.pool.retire()
        await settle()
        assert cluster.busy == [("rollout-1", False)]
        cluster.pool.add()
        await settle()
        assert cluster.busy == [("rollout-1", False), ("rollout-1", True)]

    with_cluster(act, True, True)
