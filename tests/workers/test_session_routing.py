"""Samples of a prompt and turns of a session go to the worker that has their cache."""

import asyncio

import msgspec
from pool_clusters import Cluster, settle, version, with_cluster
from tiny_models import make_request

from freerun.config.engine import EngineConfig
from freerun.types import Request


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


def test_the_samples_of_a_prompt_go_to_one_worker_which_computes_it_once() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        samples = [make_request(10 * ordinal + n, ordinal=ordinal) for ordinal in range(4) for n in range(3)]
        await asyncio.gather(*(cluster.pool.generate(request) for request in samples))
        assert [link.generated for link in cluster.links] == [[0, 1, 2, 20, 21, 22], [10, 11, 12, 30, 31, 32]]
        await cluster.pool.generate(make_request(50, ordinal=1))
        assert cluster.links[0].generated[-1] == 50, "nothing of that prompt is left at the other"

    with_cluster(act, True, True)


def test_samples_of_a_group_that_is_larger_than_an_engine_are_divided() -> None:
    async def act(cluster: Cluster) -> None:
        await cluster.pool.start()
        await cluster.pool.load(version(0))
        num_slots = EngineConfig().num_slots
        samples = [make_request(n, ordinal=0) for n in range(2 * num_slots + 2)]
        await asyncio.gather(*(cluster.pool.generate(request) for request in samples))
        assert all(len(link.generated) > num_slots // 2 for link in cluster.links)

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
