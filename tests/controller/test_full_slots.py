"""Samples fill the slots: under the real controller, in virtual time, with a long tail of lengths."""

import statistics

import pytest
from paced_run import PacedWorld


@pytest.mark.parametrize("num_slots", [6, 16, 64])
def test_no_slot_waits_for_a_sibling_while_generation_is_the_limit(num_slots: int) -> None:
    world = PacedWorld(
        median_seconds=40.0, spread=1.0, num_slots=num_slots, max_staleness=16, keep_fresh=False, num_steps=12
    ).play()
    full = [step.result.metrics["slot_occupancy"] for step in world.steps[1:]]
    assert statistics.mean(full) > 0.97
    assert all(share <= 1.0 for share in full)
    most = max(number for _, number in world.engines.decoding)
    assert most == num_slots, "the engine itself counts as many"


def test_the_queue_of_an_engine_is_shorter_than_a_group() -> None:
    world = PacedWorld(median_seconds=40.0, spread=1.0, num_slots=16, keep_fresh=False, num_steps=10)
    asked: list[int] = []
    make = world.make_engines

    def watched() -> object:
        engines = make()
        generate = engines.generate
        num = 0

        async def counted(request: object) -> object:
            nonlocal num
            num += 1
            asked.append(num)
            try:
                return await generate(request)  # type: ignore[arg-type]
            finally:
                num -= 1

        engines.generate = counted  # type: ignore[method-assign, assignment]
        return engines

    world.make_engines = watched  # type: ignore[method-assign, assignment]
    world.play()
    assert 16 <= max(asked) < 16 + world.recipe.sampling.group_size
