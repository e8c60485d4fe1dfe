"""How many groups could be decoded now, whatever their workflows do."""

import asyncio

import numpy as np
import pytest
from virtual_time import run_in_virtual_time

from freerun.controller.slots import FIRST_CALL_SECONDS, Slots
from freerun.errors import RolloutError
from freerun.types import Completion, EngineStats, Publication, Request, Sampling


class SlowGenerator:
    """Satisfies `protocols.VersionedGenerator`; a call takes as many turns of the event loop as its number."""

    num_ready = 1

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        for _ in range(request.request_id):
            await asyncio.sleep(0)
        if not request.request_id:
            raise RolloutError("refused")
        return ()

    def end_session(self, session: int) -> None: ...

    async def load(self, published: Publication) -> None:
        raise NotImplementedError

    def stats(self) -> list[EngineStats]:
        return []

    def missing(self) -> str:
        return ""

    def pin(self, version: int) -> "SlowGenerator":
        raise NotImplementedError


def request(num_turns: int, *, sample: int = 0, num_samples: int = 1) -> Request:
    return Request(
        request_id=num_turns,
        ordinal=0,
        prompt_token_ids=np.zeros(1, dtype=np.int32),
        num_samples=num_samples,
        sample=sample,
        sampling=Sampling(max_completion_tokens=1, temperature=1.0),
    )


def test_a_call_that_outlives_its_group_frees_no_slot() -> None:
    async def main() -> None:
        slots = Slots(SlowGenerator(), num_slots=1, group_size=1, on_free=lambda: None)  # type: ignore[arg-type]
        with pytest.raises(RolloutError, match="refused"), slots.of_group() as generator:
            # `gather` raises the first error and lets the other calls run on.
            await asyncio.gather(generator.generate(request(0)), generator.generate(request(9)))
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        assert slots.num_away == 0
        assert slots.num_free(1) == 0

    asyncio.run(main())


def test_a_group_is_away_between_its_calls_only() -> None:
    async def main() -> None:
        freed: list[int] = []
        slots = Slots(SlowGenerator(), num_slots=1, group_size=1, on_free=lambda: freed.append(slots.num_away))  # type: ignore[arg-type]
        with slots.of_group() as generator:
            assert slots.num_free(1) == 0, "it is about to decode"
            await asyncio.gather(generator.generate(request(1)), generator.generate(request(3)))
            assert slots.num_free(1) == 1
            again = asyncio.create_task(generator.generate(request(5)))
            await asyncio.sleep(0)
            assert slots.num_free(1) == 0
            await again
            assert slots.num_free(1) == 1
        assert slots.num_free(0) == 1
        assert freed == [1, 1]

    asyncio.run(main())


def test_a_session_that_is_away_leaves_its_slot_while_the_others_of_its_group_decode() -> None:
    async def main() -> None:
        slots = Slots(SlowGenerator(), num_slots=4, group_size=2, on_free=lambda: None)  # type: ignore[arg-type]
        with slots.of_group() as one, slots.of_group() as other:
            assert slots.num_free(2) == 0, "all four are about to decode"
            slow = [asyncio.create_task(group.generate(request(9, sample=0))) for group in (one, other)]
            await one.generate(request(1, sample=1))
            assert slots.num_free(2) == 0, "one slot is free, not two"
            await other.generate(request(1, sample=1))
            assert slots.num_free(2) == 1
            back = asyncio.create_task(one.generate(request(3, sample=1)))
            await asyncio.sleep(0)
            assert slots.num_free(2) == 0
            await asyncio.gather(back, *slow)
            assert slots.num_free(2) == 2
        assert slots.num_free(0) == 2

    asyncio.run(main())


def test_a_session_that_does_not_call_soon_holds_no_slot() -> None:
    async def main() -> None:
        slots = Slots(SlowGenerator(), num_slots=2, group_size=2, on_free=lambda: None)  # type: ignore[arg-type]
        with slots.of_group():
            assert slots.num_free(1) == 0
            await asyncio.sleep(FIRST_CALL_SECONDS + 0.1)
            assert slots.num_free(1) == 1
        assert slots.num_away == 0

    run_in_virtual_time(main())


def test_no_more_sessions_start_than_the_agent_workers_can_run() -> None:
    async def main() -> None:
        slots = Slots(SlowGenerator(), num_slots=64, group_size=4, max_sessions=11, on_free=lambda: None)  # type: ignore[arg-type]
        assert [slots.num_free(num_running) for num_running in range(3)] == [2, 1, 0]
        small = Slots(SlowGenerator(), num_slots=64, group_size=4, max_sessions=3, on_free=lambda: None)  # type: ignore[arg-type]
        assert small.num_free(0) == 1, "a group of more sessions than seats still starts"

    asyncio.run(main())
