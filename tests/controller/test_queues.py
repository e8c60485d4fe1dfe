"""What waits between the loops, and for how long the gate was closed."""

import asyncio
import random
from itertools import pairwise

import msgspec
import pytest
from simulated_run import World

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.buffer.gate import StalenessGate
from freerun.config.recipe import BufferConfig, Recipe, SamplingConfig
from freerun.config.train import TrainConfig
from freerun.controller.queues import QUEUES_SECONDS, QueueWatch
from freerun.events.events import AnyEvent, Queues, StepFinished
from freerun.simulation.virtual_time import run_in_virtual_time


def test_the_gate_is_closed_from_when_a_group_no_longer_fits_until_it_does() -> None:
    async def main() -> None:
        loop, events = asyncio.get_running_loop(), list[AnyEvent]()
        gate = StalenessGate(batch_size=4, max_staleness=0)
        buffer = TrajectoryBuffer(groups_per_batch=2, max_staleness=0, policy="wait", filter_zero_variance=False)
        watch = QueueWatch(gate, buffer, group_size=2, emit=events.append, clock=loop.time)
        watch.look()
        await asyncio.sleep(5)
        gate.start(3)  # room for one sample, not for a group
        buffer.start(0, 0)
        watch.look()
        await asyncio.sleep(7)
        assert watch.gate_closed_seconds == 7
        gate.give_back(1)
        watch.look()
        await asyncio.sleep(100)
        assert watch.gate_closed_seconds == 7
        last = events[-1]
        assert isinstance(last, Queues)
        assert (last.counts.num_running, last.counts.gate_capacity, last.counts.oldest_version) == (1, 2, 0)

    run_in_virtual_time(main())


def test_many_changes_make_two_events_a_second_and_the_last_one_is_told() -> None:
    async def main() -> None:
        loop, events = asyncio.get_running_loop(), list[Queues]()
        gate = StalenessGate(batch_size=1000, max_staleness=0)
        buffer = TrajectoryBuffer(
            groups_per_batch=1000, max_staleness=0, policy="wait", filter_zero_variance=False
        )
        watch = QueueWatch(gate, buffer, group_size=1, emit=events.append, clock=loop.time)  # type: ignore[arg-type]
        for ordinal in range(200):
            gate.start(1)
            buffer.start(ordinal, 0)
            watch.look()
            await asyncio.sleep(0.01)
        await asyncio.sleep(10)
        watch.look()
        await asyncio.sleep(10)
        assert len(events) <= 2 * 2 + 2
        assert events[-1].counts.num_running == 200

    run_in_virtual_time(main())


@pytest.mark.parametrize("seed", range(8))
def test_a_whole_run_tells_its_queues_rarely_and_its_steps_add_up(seed: int) -> None:
    rng = random.Random(seed)
    recipe = Recipe(
        sampling=SamplingConfig(group_size=2),
        buffer=BufferConfig(max_staleness=rng.choice([0, 1, 4])),
        train=TrainConfig(num_steps=12, prompts_per_step=2, num_minibatches=1),
    )
    world = World(recipe, rng, failure_rate=0.1, tail=5.0)
    run_in_virtual_time(world.session("end"))
    queues = [event for event in world.events if isinstance(event, Queues)]
    for earlier, later in pairwise(queues):
        assert later.seconds - earlier.seconds >= QUEUES_SECONDS - 1e-9
        assert msgspec.structs.replace(later.counts, gate_closed_seconds=0.0) != msgspec.structs.replace(
            earlier.counts, gate_closed_seconds=0.0
        )
    steps = [event for event in world.events if isinstance(event, StepFinished)]
    closed = 0.0
    for step in steps:
        assert step.queues is not None
        closed += step.result.metrics["gate_closed_seconds"]
        assert step.queues.gate_closed_seconds == pytest.approx(closed)
        assert 0 <= closed <= step.seconds
    assert closed > 0
