"""A simulated link keeps the promises of `processes/link.py::Link`."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from freerun.errors import WorkerError
from freerun.processes.link import Launcher, Link, WorkerJob
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.simulation.worker_link import SimulatedLauncher, SimulatedLink

JOB = WorkerJob("rollout-0", "rollout", "freerun.workers.rollout_worker")


class Echo:
    """Answers every message after a second, and a second after the one before."""

    def __init__(self, link: SimulatedLink) -> None:
        self.link = link
        self.has_ended = False
        self.num_messages = 0

    def take(self, message: Any) -> None:
        self.num_messages += 1
        asyncio.get_running_loop().call_later(float(self.num_messages), self.link.tell, message)

    def end(self) -> None:
        self.has_ended = True


def with_link(main: Any) -> Any:
    async def run() -> Any:
        launcher = SimulatedLauncher(lambda job, link: Echo(link))
        as_launcher: Launcher = launcher
        link: Link[Any] = await as_launcher.launch(JOB, str)
        assert launcher.links["rollout-0"] is link
        return await main(link)

    main_run: Coroutine[Any, Any, Any] = run()
    return run_in_virtual_time(main_run, max_seconds=1000.0)


def test_messages_arrive_in_order_and_a_cancelled_receive_loses_none() -> None:
    async def main(link: SimulatedLink) -> list[Any]:
        link.send("a")
        link.send("b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await link.receive()
        return [await link.receive(), await link.receive()]

    assert with_link(main) == ["a", "b"]


def test_what_was_sent_before_the_end_still_arrives() -> None:
    async def main(link: SimulatedLink) -> list[Any]:
        link.tell("last words")
        link.kill()
        link.tell("from the grave")
        link.send("to the grave")
        assert isinstance(link.worker, Echo)
        assert link.worker.has_ended
        await asyncio.sleep(5.0)
        return [await link.receive(), await link.receive()]

    assert with_link(main) == ["last words", None]


def test_waiting_ends_with_the_worker_or_with_patience() -> None:
    async def main(link: SimulatedLink) -> list[float]:
        loop = asyncio.get_running_loop()
        await link.wait(5.0)
        times = [loop.time()]
        loop.call_later(2.0, link.die, "of its own")
        await link.wait(5.0)
        await link.wait(5.0)
        assert "of its own" in link.describe_end()
        return [*times, loop.time()]

    assert with_link(main) == [5.0, 7.0]


def test_a_silent_worker_is_alive_and_says_nothing() -> None:
    async def main(link: SimulatedLink) -> tuple[bool, float]:
        await asyncio.sleep(10.0)
        assert link.seconds_silent == 0.0
        link.fall_silent()
        link.send("a")
        await asyncio.sleep(30.0)
        return link.is_alive, link.seconds_silent

    assert with_link(main) == (True, 30.0)


def test_nonsense_is_an_error_and_a_worker_that_was_taken_away_says_so() -> None:
    async def main(link: SimulatedLink) -> bool:
        link.send_nonsense()
        with pytest.raises(WorkerError, match="unexpected message"):
            await link.receive()
        assert not link.was_taken_away
        link.take_away()
        assert await link.receive() is None
        return link.was_taken_away

    assert with_link(main)
