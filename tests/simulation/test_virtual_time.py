"""The clock of a simulation, and what it says of programs that hang."""

import asyncio

import pytest

from freerun.simulation.virtual_time import DeadlockError, TimeLimitError, run_in_virtual_time, stand_still


def test_hours_pass_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()

        async def note(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, loop.time()))

        await asyncio.gather(note("late", 7200.0), note("early", 10.0))
        return seen

    assert run_in_virtual_time(main()) == [("early", 10.0), ("late", 7200.0)]


def test_a_cancelled_timer_does_not_move_the_clock() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, lambda: None).cancel()
        await asyncio.sleep(9.0)
        return loop.time()

    assert run_in_virtual_time(main()) == 9.0


def test_a_thread_is_a_call() -> None:
    async def main() -> tuple[int, float]:
        result = await asyncio.to_thread(lambda: 3)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return result, asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == (3, 0.0)


def test_a_program_that_waits_for_nothing_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.sleep(2.0)
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"after 2\.0 s"):
        run_in_virtual_time(main())


def test_a_program_that_ticks_forever_meets_the_limit_and_may_clean_up() -> None:
    ended = []

    async def main() -> None:
        try:
            while True:
                await asyncio.sleep(1.0)
        finally:
            await asyncio.sleep(5.0)
            ended.append(asyncio.get_running_loop().time())

    with pytest.raises(TimeLimitError, match="100 s"):
        run_in_virtual_time(main(), max_seconds=100.0)
    assert ended == [106.0]


def test_standing_still_makes_timers_late() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        fired: list[float] = []
        loop.call_later(3.0, lambda: fired.append(loop.time()))
        stand_still(10.0)
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)
        return fired[0]

    assert run_in_virtual_time(main()) == 10.0
