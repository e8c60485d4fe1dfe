"""The stage of SFT on a trainer that only counts: when it measures, and when it stops."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from freerun.config.recipe import Recipe
from freerun.config.sft import SftConfig
from freerun.data.demonstrations import SftData
from freerun.events.events import SftStep
from freerun.session.sft import ROWS_PER_MEASUREMENT, SftStage
from freerun.types import Demonstration, Doing

ROW = Demonstration(token_ids=np.arange(3, dtype=np.int32), is_trained=np.array([False, True, True]))
NUM_HELD_OUT = 3 * ROWS_PER_MEASUREMENT


class CountingTrainer:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    async def supervise(self, demonstrations: Sequence[Demonstration], lr: float | None) -> float:
        self._calls.append("measure" if lr is None else "train")
        return 1.0


class QuietLife:
    seconds = 0.0

    def __init__(self) -> None:
        self.events: list[SftStep] = []

    def act(self, worker: str, doing: Doing) -> None: ...

    def on_stop(self, request_stop: Callable[[], None]) -> None: ...

    def emit(self, event: SftStep) -> None:
        self.events.append(event)


def run_stage(must_stop_after: int) -> tuple[list[str], list[SftStep]]:
    """What the trainer was asked for, and the events, of four steps; it must stop after some calls."""
    calls, life = list[str](), QuietLife()
    data = SftData(4, lambda step: iter([[ROW]] * (4 - step)), held_out=(ROW,) * NUM_HELD_OUT)
    recipe = Recipe(sft=SftConfig(num_steps=4, eval_every_steps=2))
    trainer: Any = CountingTrainer(calls)
    untyped_life: Any = life

    async def save(state: Any) -> None: ...

    stage = SftStage(recipe, data, trainer, life=untyped_life, save=save)
    asyncio.run(stage.run(lambda: len(calls) >= must_stop_after))
    return calls, life.events


def test_held_out_rows_are_measured_before_the_first_step_and_when_due() -> None:
    calls, events = run_stage(must_stop_after=1000)
    whole = ["measure"] * 3
    assert calls == [*whole, "train", "train", *whole, "train", "train", *whole]
    assert [event.held_out_loss for event in events] == [1.0, None, 1.0, None, 1.0]
    assert [event.step for event in events] == [0, 1, 2, 3, 4]


def test_a_stop_during_the_first_measurement_waits_for_one_message_only() -> None:
    assert run_stage(must_stop_after=1) == (["measure"], [])


def test_a_stop_during_a_later_measurement_keeps_the_step_that_was_made() -> None:
    calls, events = run_stage(must_stop_after=6)
    assert calls == [*["measure"] * 3, "train", "train", "measure"]
    assert [(event.step, event.held_out_loss) for event in events] == [(0, 1.0), (1, None), (2, None)]
