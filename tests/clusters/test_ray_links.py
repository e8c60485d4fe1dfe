"""Links to workers on a Ray cluster: order, weights, cores, and how an end is told."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from link_rig import NUM_BYTES, WithWorkers, Workers, answer, run_with_workers
from ray_clusters import Cluster, head_without_cpus, wait_for_end, wait_until, workers_on
from weight_worker import Load, Loaded, Make, Published, Say


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node for the trainer and one for both rollout workers."""
    with head_without_cpus() as cluster:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=2)
        yield cluster


@pytest.fixture
def with_workers(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WithWorkers:
    return run_with_workers(cluster, tmp_path, monkeypatch, num_rollout_workers=2)


def stored_on(node: object) -> tuple[int, int]:
    """How many objects the node's store holds, and their bytes."""
    from ray._private.internal_api import node_stats

    stats = node_stats(node.node_ip_address, node.node_manager_port).store_stats  # type: ignore[attr-defined]
    return stats.num_local_objects, stats.object_store_bytes_used


def test_weights_reach_every_worker_whole_but_each_node_once(cluster: Cluster, with_workers: WithWorkers) -> None:
    async def act(workers: Workers) -> None:
        trainer, *rollouts = await workers.start("trainer", "rollout-0", "rollout-1")
        for version in range(5):
            trainer.send(Make(version, NUM_BYTES))
            published = await answer(trainer)
            assert isinstance(published, Published)
            for link in rollouts:
                link.send(Load(published.published))
            # The checksum that each computes is the one the trainer computed.
            assert [await answer(link) for link in rollouts] == [Loaded(published.published)] * 2
        trainer_node, rollout_node = sorted(cluster.worker_nodes, key=lambda node: len(workers_on(node)))
        # Two versions are kept where they were made, and one copy of each at most where two workers load them.
        wait_until(lambda: stored_on(trainer_node)[0] == 2, "older versions to be freed where they were made")
        wait_until(lambda: 1 <= stored_on(rollout_node)[0] <= 2, "older versions to be freed on the other node")
        assert stored_on(rollout_node)[1] < 2.5 * NUM_BYTES
        for link in (trainer, *rollouts):
            link.kill()
            await link.wait(10)

    with_workers(act)


def test_nothing_overtakes_weights_that_are_on_their_way(with_workers: WithWorkers) -> None:
    async def act(workers: Workers) -> None:
        trainer, rollout = await workers.start("trainer", "rollout-0")
        trainer.send(Make(1, NUM_BYTES))
        published = (await answer(trainer)).published
        rollout.send(Say("before"))
        rollout.send(Load(published))
        for number in range(50):
            rollout.send(Say(str(number)))
        received = [await answer(rollout) for _ in range(52)]
        assert received == [Say("before"), Loaded(published), *(Say(str(number)) for number in range(50))]

    with_workers(act)


def test_workers_of_one_machine_have_cores_of_their_own_and_know_their_host(with_workers: WithWorkers) -> None:
    async def act(workers: Workers) -> None:
        links = await workers.start("trainer", "rollout-0", "rollout-1")
        cores = []
        for link in links:
            link.send(Say("cores"))
            link.send(Say("host"))
            cores.append((await answer(link)).what.split(","))
            assert (await answer(link)).what == "127.0.0.1"
        alone = [one for one in cores if len(one) == 1]
        assert len(alone) == min(3, len(os.sched_getaffinity(0)))
        assert len({one[0] for one in alone}) == len(alone)
        assert all(len(one) == len(os.sched_getaffinity(0)) for one in cores if one not in alone)

    with_workers(act)


def test_the_end_of_a_worker_is_told_with_its_node_and_its_log(with_workers: WithWorkers) -> None:
    async def act(workers: Workers) -> None:
        (link,) = await workers.start("rollout-0")
        link.send(Say("fail"))
        assert await answer(link) is None
        assert await answer(link) is None
        await link.wait(10)
        assert not link.is_alive
        assert "rollout-0 on node 127.0.0.1 (pid" in link.describe_end()
        assert "exited with status 1" in link.describe_end()
        assert "ValueError: asked to fail" in link.describe_end()
        link.send(Say("too late"))
        link.kill()

    with_workers(act)


def test_the_loss_of_an_actor_is_noticed_and_takes_its_worker_along(
    cluster: Cluster, with_workers: WithWorkers
) -> None:
    async def act(workers: Workers) -> None:
        (link,) = await workers.start("rollout-0")
        link.send(Say("hello"))
        assert await answer(link) == Say("hello")
        (worker,) = [worker for node in cluster.worker_nodes for worker in workers_on(node)]
        worker.parent().kill()
        assert await answer(link) is None
        assert "rollout-0 on node 127.0.0.1 is lost" in link.describe_end()
        wait_for_end([worker])

    with_workers(act)


@pytest.mark.parametrize("stopped", ["worker", "host"])
def test_who_is_busy_is_not_silent_who_is_stopped_is_and_can_be_killed(
    cluster: Cluster, with_workers: WithWorkers, stopped: str
) -> None:
    async def act(workers: Workers) -> None:
        (link,) = await workers.start("rollout-0")
        link.send(Say("hello"))
        await answer(link)
        (worker,) = [worker for node in cluster.worker_nodes for worker in workers_on(node)]
        link.send(Say("hang"))
        async with asyncio.timeout(30):  # it is heard again, though it does nothing else
            silent = link.seconds_silent
            while link.seconds_silent >= silent:
                silent = link.seconds_silent
                await asyncio.sleep(0.1)
        (worker if stopped == "worker" else worker.parent()).send_signal(signal.SIGSTOP)
        async with asyncio.timeout(30):
            while link.seconds_silent < 4:
                await asyncio.sleep(0.5)
        link.kill()
        assert await answer(link) is None
        await link.wait(10)
        wait_for_end([worker])
        assert "was killed" in link.describe_end()

    with_workers(act)


def test_a_worker_without_room_is_not_placed_until_there_is(with_workers: WithWorkers) -> None:
    async def act(workers: Workers) -> None:
        links = await workers.start("rollout-0", "rollout-1", "trainer")
        for link in links:
            link.send(Say("hello"))
            await answer(link)
        (successor,) = await workers.start("rollout-0")
        successor.send(Say("at last"))
        await asyncio.sleep(1)
        assert not successor.is_placed
        assert successor.is_alive
        assert successor.seconds_silent == 0
        assert "rollout-0 waits for room in the cluster: 1 CPU wanted, free: 0 CPU" in successor.describe_end()
        links[0].kill()
        assert await answer(successor) == Say("at last")
        assert successor.is_placed

    with_workers(act)
