"""The clock of a session counts its own time only."""

import asyncio

from freerun.rollout.clock import SessionClock
from freerun.simulation.virtual_time import run_in_virtual_time


def now() -> float:
    return asyncio.get_running_loop().time()


def test_it_is_over_after_its_seconds() -> None:
    async def run() -> None:
        clock = SessionClock(10.0)
        assert not clock.is_over
        await clock.wait()
        assert clock.is_over
        assert now() == 10.0

    run_in_virtual_time(run())


def test_it_stands_still_while_it_is_stopped_even_if_stops_overlap() -> None:
    async def stop(clock: SessionClock, after: float, seconds: float) -> None:
        await asyncio.sleep(after)
        with clock.stopped():
            await asyncio.sleep(seconds)

    async def run() -> None:
        clock = SessionClock(10.0)
        stops = [stop(clock, 1, 4), stop(clock, 2, 5), stop(clock, 8, 1)]  # from 1 to 7 and from 8 to 9
        await asyncio.gather(clock.wait(), *stops)
        assert now() == 17.0

    run_in_virtual_time(run())


def test_a_session_that_is_out_of_time_may_get_some_more() -> None:
    async def run() -> None:
        clock = SessionClock(10.0)
        await clock.wait()
        clock.extend(2.0)
        assert clock.is_over
        with clock.stopped():
            await asyncio.sleep(100)
        await clock.wait()
        assert now() == 112.0

    run_in_virtual_time(run())


def test_it_does_not_run_before_it_is_started() -> None:
    async def run() -> None:
        clock = SessionClock(10.0)
        with clock.stopped():
            await asyncio.sleep(100)
        await asyncio.sleep(100)
        assert not clock.is_over
        await clock.wait()
        assert now() == 210.0

    run_in_virtual_time(run())
