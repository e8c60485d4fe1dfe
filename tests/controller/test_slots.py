"""How many groups could be decoded now, whatever their workflows do."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from freerun.controller.slots import FIRST_CALL_SECONDS, Slots
from freerun.errors import RolloutError
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.types import Completion, EngineStats, Publication, Request, Sampling


class SlowGenerator:
    """Satisfies `protocols.VersionedGenerator`; a call takes as many turns of the event loop as its number."""

    num_ready = 1
    num_leaving = 0

    def __init__(self, stats: EngineStats | None) -> None:
        self.reported = [stats] if stats else []

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
        return self.reported

    def served_by(self, request_id: int) -> str:
        return ""

    def missing(self) -> str:
        return ""

    def pin(self, version: int) -> "SlowGenerator":
        raise NotImplementedError


def slots_of(
    num_slots: int,
    *,
    group_size: int,
    max_sessions: int | None = None,
    on_free: Callable[[], object] = lambda: None,
    stats: EngineStats | None = None,
) -> Slots:
    return Slots(
        SlowGenerator(stats),  # type: ignore[arg-type]
        num_slots=num_slots,
        group_size=group_size,
        max_sessions=max_sessions,
        on_free=on_free,  # type: ignore[arg-type]
        clock=asyncio.get_running_loop().time,
    )


def request(num_turns: int, *, sample: int = 0, num_samples: int = 1) -> Request:
    return Request(
        request_id=num_turns,
        ordinal=0,
        prompt_token_ids=np.zeros(1, dtype=np.int32),
        num_samples=num_samples,
        sample=sample,
        sampling=Sampling(max_completion_tokens=1, temperature=1.0),
    )


def test_samples_of_a_worker_that_retires_need_no_slot_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        assert slots_of(8, group_size=4).num_free(3) == -1
        monkeypatch.setattr(SlowGenerator, "num_leaving", 8)
        assert slots_of(8, group_size=4).num_free(3) == 1

    asyncio.run(main())


def test_a_call_that_outlives_its_group_frees_no_slot() -> None:
    async def main() -> None:
        slots = slots_of(1, group_size=1)
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
        slots = slots_of(1, group_size=1, on_free=lambda: freed.append(slots.num_away))
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
        slots = slots_of(4, group_size=2)
        with slots.of_group() as one, slots.of_group() as other:
            assert slots.num_free(2) == 0, "all four are about to decode"
            slow = [asyncio.create_task(group.generate(request(9, sample=0))) for group in (one, other)]
            await one.generate(request(1, sample=1))
            assert slots.num_free(2) == 1, "a sample finds a slot; its sibling waits for the next"
            await other.generate(request(1, sample=1))
            assert slots.num_free(2) == 1
            back = [asyncio.create_task(group.generate(request(3, sample=1))) for group in (one, other)]
            await asyncio.sleep(0)
            assert slots.num_free(2) == 0
            await asyncio.gather(*back, *slow)
            assert slots.num_free(2) == 2
        assert slots.num_free(0) == 2

    asyncio.run(main())


def test_a_session_that_does_not_call_soon_holds_no_slot() -> None:
    async def main() -> None:
        slots = slots_of(2, group_size=2)
        with slots.of_group():
            assert slots.num_free(1) == 0
            await asyncio.sleep(FIRST_CALL_SECONDS + 0.1)
            assert slots.num_free(1) == 1
        assert slots.num_away == 0

    run_in_virtual_time(main())


def test_no_more_sessions_start_than_the_agent_workers_can_run() -> None:
    async def main() -> None:
        slots = slots_of(64, group_size=4, max_sessions=11)
        assert [slots.num_free(num_running) for num_running in range(3)] == [2, 1, 0]
        small = slots_of(64, group_size=4, max_sessions=3)
        assert small.num_free(0) == 1, "a group of more sessions than seats still starts"

    asyncio.run(main())


def test_no_sample_is_queued_behind_a_group_that_is_larger_than_the_engine() -> None:
    async def main() -> None:
        slots = slots_of(4, group_size=6)
        assert slots.num_free(0) == 1
        with slots.of_group() as generator:
            tasks = [asyncio.create_task(generator.generate(request(9 * n + 1, sample=n))) for n in range(6)]
            assert slots.num_free(1) == 0
            await tasks[1]
            assert slots.num_free(1) == 0, "four of its six samples fill the slots"
            await tasks[2]
            assert slots.num_free(1) == 1
            await asyncio.gather(*tasks)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("num_running", "cache_tokens_used", "num_groups"),
    [(10, 499, 16), (10, 500, 16), (10, 900, 3), (10, 1000, 3), (12, 1000, 3), (40, 1000, 10), (1, 1000, 1)],
)
def test_once_half_the_cache_is_used_no_more_start_than_it_has_room_for(
    num_running: int, cache_tokens_used: int, num_groups: int
) -> None:
    async def main() -> None:
        stats = EngineStats(
            num_slots=64, num_running=num_running, cache_tokens_used=cache_tokens_used, cache_tokens=1000
        )
        assert slots_of(64, group_size=4, stats=stats).num_free(0) == num_groups

    asyncio.run(main())


def test_occupancy_is_the_share_of_the_slots_that_decode_over_time() -> None:
    async def main() -> None:
        slots = slots_of(4, group_size=2)
        assert slots.occupancy.since_last() is None
        occupancy = slots.occupancy
        occupancy.note(0, 4)
        await asyncio.sleep(10)
        occupancy.note(4, 4)
        await asyncio.sleep(10)
        occupancy.note(6, 4)
        await asyncio.sleep(10)
        occupancy.note(1, 4)
        await asyncio.sleep(10)
        assert occupancy.since_last() == pytest.approx((0 + 1 + 1 + 0.25) / 4)
        await asyncio.sleep(10)
        assert occupancy.since_last() == 0.25

    run_in_virtual_time(main())
