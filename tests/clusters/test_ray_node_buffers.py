"""The weights of a node: all its workers share one pair of buffers, filled once, and any of them may die."""

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from link_rig import NUM_BYTES, WithWorkers, Workers, answer, run_with_workers
from ray_clusters import Cluster, head_without_cpus, wait_for_end, workers_on
from weight_worker import Load, Loaded, Make, Say

from freerun.backends.ray.link import RayLink
from freerun.types import Publication

ROLLOUTS = ("rollout-0", "rollout-1", "rollout-2")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with room for two: the trainer shares one with a rollout worker, the other has the other two."""
    with head_without_cpus() as cluster:
        cluster.add_node(num_cpus=2)
        cluster.add_node(num_cpus=2)
        yield cluster


@pytest.fixture
def with_workers(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WithWorkers:
    return run_with_workers(cluster, tmp_path, monkeypatch, num_rollout_workers=3)


class Placed(NamedTuple):
    """A worker, its process, and the files it has as memory for weights."""

    link: RayLink[Any]
    process: psutil.Process
    inodes: tuple[str, ...]

    @property
    def host(self) -> psutil.Process:
        parent = self.process.parent()
        assert parent is not None
        return parent

    async def load(self, published: Publication) -> None:
        self.link.send(Load(published))
        assert await answer(self.link) == Loaded(published)


async def placed(link: RayLink[Any]) -> Placed:
    link.send(Say("memory"))
    pid, *inodes = (await answer(link)).what.split()
    return Placed(link, psutil.Process(int(pid)), tuple(inodes))


class Four(NamedTuple):
    """The trainer, the rollout worker on its node, and the two on the other."""

    trainer: Placed
    beside: Placed
    pair: tuple[Placed, Placed]

    async def publish(self, version: int) -> Publication:
        self.trainer.link.send(Make(version, NUM_BYTES))
        published: Publication = (await answer(self.trainer.link)).published
        return published


async def start_four(cluster: Cluster, workers: Workers) -> Four:
    trainer, *rollouts = [await placed(link) for link in await workers.start("trainer", *ROLLOUTS)]
    (home,) = [node for node in cluster.worker_nodes if trainer.process in workers_on(node)]
    (beside,) = [one for one in rollouts if one.process in workers_on(home)]
    first, second = [one for one in rollouts if one is not beside]
    return Four(trainer, beside, (first, second))


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


async def replaced(lost: Placed, workers: Workers) -> Placed:
    """The successor of a worker whose host is killed."""
    lost.host.send_signal(signal.SIGKILL)
    assert await answer(lost.link) is None
    (successor,) = await workers.start(lost.link.name)
    return await placed(successor)


def is_filling(host: psutil.Process) -> bool:
    """Whether a host on the node of this one has the lock."""
    labels, *_ = [link for link in Path(f"/proc/{host.pid}/fd").iterdir() if "-labels" in os.readlink(link)]
    file = os.open(labels, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def test_the_workers_of_a_node_share_memory_and_the_trainer_publishes_into_that_of_its_node(
    cluster: Cluster, with_workers: WithWorkers
) -> None:
    async def act(workers: Workers) -> None:
        four = await start_four(cluster, workers)
        first, second = four.pair
        assert len(set(four.trainer.inodes)) == 2
        assert four.beside.inodes == four.trainer.inodes
        assert first.inodes == second.inodes
        assert not set(first.inodes) & set(four.trainer.inodes)
        for version in range(4):
            published = await four.publish(version)
            await asyncio.gather(*(one.load(published) for one in (four.beside, *four.pair)))

    with_workers(act)


def test_a_version_is_copied_to_a_node_once_and_on_the_trainers_node_it_is_there(
    cluster: Cluster, with_workers: WithWorkers
) -> None:
    async def act(workers: Workers) -> None:
        four = await start_four(cluster, workers)
        published = await four.publish(1)
        await four.pair[0].load(published)
        with stopped(four.trainer.host):  # which all that need a copy have to ask
            await four.pair[1].load(published)
            await four.beside.load(published)

    with_workers(act)


@pytest.mark.parametrize("how", ["is killed", "hangs"])
def test_a_host_that_is_lost_while_it_fills_leaves_that_to_the_next(
    cluster: Cluster, with_workers: WithWorkers, how: str
) -> None:
    async def act(workers: Workers) -> None:
        four = await start_four(cluster, workers)
        first, second = four.pair
        published = await four.publish(1)
        with stopped(four.trainer.host):  # so filling takes as long as the test wants
            first.link.send(Load(published))
            async with asyncio.timeout(60):
                while not is_filling(second.host):
                    await asyncio.sleep(0.1)
            second.link.send(Load(published))
            first.host.send_signal(signal.SIGKILL if how == "is killed" else signal.SIGSTOP)
            if how == "hangs":
                first.link.kill()
            assert await answer(first.link) is None
            await first.link.wait(30)
            wait_for_end([first.process])
        assert await answer(second.link) == Loaded(published)

    with_workers(act)


def test_buffers_outlive_the_host_that_created_them_and_a_node_that_lost_all_gets_new_ones(
    cluster: Cluster, with_workers: WithWorkers
) -> None:
    async def act(workers: Workers) -> None:
        four = await start_four(cluster, workers)
        first, second = four.pair
        published = await four.publish(1)
        await second.load(published)

        third = await replaced(first, workers)
        assert third.inodes == second.inodes
        with stopped(four.trainer.host):
            await third.load(published)
        fourth = await replaced(second, workers)  # now both that the node began with are gone
        assert fourth.inodes == third.inodes
        published = await four.publish(2)
        await asyncio.gather(*(one.load(published) for one in (four.beside, third, fourth)))

        for one in (third, fourth):
            one.link.kill()
            await one.link.wait(10)
        (fifth,) = [await placed(link) for link in await workers.start(first.link.name)]
        await fifth.load(published)

    with_workers(act)
