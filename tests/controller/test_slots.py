"""How many groups could be decoded now, whatever their workflows do."""

import asyncio

import numpy as np
import pytest

from freerun.controller.slots import Slots
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

    async def load(self, published: Publication) -> None:
        raise NotImplementedError

    def stats(self) -> list[EngineStats]:
        return []

    def missing(self) -> str:
        return ""

    def pin(self, version: int) -> "SlowGenerator":
        raise NotImplementedError


def request(num_turns: int) -> Request:
    return Request(
        request_id=num_turns,
        ordinal=0,
        prompt_token_ids=np.zeros(1, dtype=np.int32),
        num_samples=1,
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
