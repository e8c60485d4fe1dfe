"""Supervision: no failure goes unnoticed, and none is reported twice."""

import asyncio
import gc
from typing import Any

import pytest

from freerun.errors import WorkerError
from freerun.processes.supervision import Supervisor, bury
from freerun.simulation.virtual_time import run_in_virtual_time


async def fail(what: str) -> None:
    raise ValueError(what)


def test_two_failures_in_one_turn_leave_nothing_for_asyncio_to_complain_about() -> None:
    complaints: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        supervisor = Supervisor()
        supervisor.start(fail("beside"))
        with pytest.raises(ValueError, match="beside"):
            await supervisor.watch(fail("watched"))
        await supervisor.close()
        gc.collect()

    asyncio.run(main())
    assert complaints == []


def test_the_first_loss_fails_every_wait_and_cancels_what_is_watched() -> None:
    async def main() -> None:
        losses: list[str] = []
        supervisor = Supervisor(on_loss=lambda error: losses.append(str(error)))
        watched = asyncio.create_task(asyncio.sleep(1000))
        waits = [asyncio.create_task(supervisor.watch(watched)), asyncio.create_task(supervisor.wait_for_loss())]
        supervisor.start(fail("first"))
        await asyncio.sleep(0.01)
        supervisor.lose(ValueError("second"))
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert [str(result) for result in results] == ["first", "first"]
        assert watched.cancelled()
        assert losses == ["first"]
        with pytest.raises(ValueError, match="first"):
            await supervisor.watch(asyncio.sleep(1000))
        await supervisor.close()

    asyncio.run(main())


def test_a_check_that_raises_is_a_loss() -> None:
    async def main() -> None:
        supervisor = Supervisor()
        supervisor.check_often(lambda: divmod(1, 0) and None)
        with pytest.raises(ZeroDivisionError):
            await supervisor.watch(asyncio.sleep(1000))
        await supervisor.close()

    run_in_virtual_time(main())


@pytest.mark.parametrize("refusal", ["", "no restarts are left"])
def test_a_death_is_reported_once_and_says_whether_there_is_a_successor(refusal: str) -> None:
    deaths: list[tuple[str, str, bool]] = []

    async def main() -> None:
        link = EndedLink()
        burial = bury(link, lambda *death: deaths.append(death), lambda: refusal)
        if refusal:
            with pytest.raises(WorkerError, match="no restarts are left: exited with status 3"):
                await burial
        else:
            await burial
        assert link.calls == ["wait", "kill", "wait"]  # it may end by itself first: then its own status is known

    asyncio.run(main())
    assert deaths == [("worker-0", "exited with status 3", not refusal)]


class EndedLink:
    """A worker whose connection is closed; notes what is done to it."""

    name = "worker-0"
    is_alive = is_placed = was_taken_away = False
    seconds_silent = 0.0

    def __init__(self) -> None:
        self.calls: list[str] = []

    def send(self, message: Any) -> None: ...

    async def receive(self) -> None:
        return None

    def kill(self) -> None:
        self.calls.append("kill")

    async def wait(self, timeout_seconds: float) -> None:
        self.calls.append("wait")

    def describe_end(self) -> str:
        return "exited with status 3"
