"""In lockstep, calls are made when every running session has one, in the order of the sessions."""

import asyncio

from freerun.workers.lockstep import Lockstep


async def call(lockstep: Lockstep, made: list[tuple[int, int]], number: int, call: int) -> None:
    await lockstep.wait(number, call)
    made.append((number, call))


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_calls_wait_until_every_session_has_one_and_come_in_the_order_of_the_sessions() -> None:
    async def main() -> None:
        lockstep = Lockstep()
        made: list[tuple[int, int]] = []
        for number in (1, 2, 3):
            lockstep.begin(number)
        tasks = [asyncio.create_task(call(lockstep, made, number, 0)) for number in (3, 1)]
        await turn()
        assert made == []
        tasks.append(asyncio.create_task(call(lockstep, made, 2, 0)))
        await turn()
        assert made == [(1, 0), (2, 0), (3, 0)]
        await asyncio.gather(*tasks)

    asyncio.run(main())


def test_a_session_that_ends_is_not_waited_for() -> None:
    async def main() -> None:
        lockstep = Lockstep()
        made: list[tuple[int, int]] = []
        lockstep.begin(1)
        lockstep.begin(2)
        task = asyncio.create_task(call(lockstep, made, 1, 4))
        await turn()
        assert made == []
        lockstep.end(2)
        await task
        assert made == [(1, 4)]

    asyncio.run(main())


def test_a_call_that_was_cancelled_is_not_made_and_its_session_is_waited_for() -> None:
    async def main() -> None:
        lockstep = Lockstep()
        made: list[tuple[int, int]] = []
        lockstep.begin(1)
        lockstep.begin(2)
        cancelled = asyncio.create_task(call(lockstep, made, 1, 0))
        await turn()
        cancelled.cancel()
        await turn()
        other = asyncio.create_task(call(lockstep, made, 2, 0))
        await turn()
        assert made == []
        again = asyncio.create_task(call(lockstep, made, 1, 1))
        await asyncio.gather(other, again)
        assert made == [(1, 1), (2, 0)]

    asyncio.run(main())
