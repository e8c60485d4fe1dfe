"""Simulated runs whose rollout workers come and go."""

from dataclasses import replace
from typing import Any

from simulated_setups import make_recipe, make_setup

from freerun.config.engine import EngineConfig
from freerun.config.train import TrainConfig
from freerun.events.events import AnyEvent, Notice, StepFinished
from freerun.simulation.costs import LinearTrainer
from freerun.simulation.elastic import ElasticSplit, SharingTrainer
from freerun.simulation.run import Outcome, Setup, simulate

NUM_GPUS = 8


def trainer_beside(num_workers: int) -> LinearTrainer:
    """A trainer that is twice as fast with twice the GPUs."""
    return LinearTrainer(step=0.1, token=2e-3 / (NUM_GPUS - num_workers))


def setup_of(num_started: int, *, is_elastic: bool = True, **elastic: Any) -> Setup:
    engine = EngineConfig(
        num_workers=NUM_GPUS - 1 if is_elastic else num_started,
        min_workers=1 if is_elastic else 0,
        num_slots=8,
        cache_tokens=20_000,
    )
    split = ElasticSplit(
        num_started,
        elastic.get("trainer_with", trainer_beside),
        start_seconds=0.5,
        switch_seconds=elastic.get("switch_seconds", 0.5),
    )
    return make_setup(
        recipe=make_recipe(engine=engine, train=TrainConfig(num_steps=60, prompts_per_step=8)),
        trainer_costs=trainer_beside(num_started),
        elastic=split if is_elastic else None,
    )


def played(setup: Setup) -> tuple[Outcome, list[AnyEvent]]:
    events: list[AnyEvent] = []
    return simulate(setup, emit=events.append), events


def test_a_bad_split_is_left_and_more_is_trained() -> None:
    best = max(simulate(setup_of(k, is_elastic=False)).tokens_per_second for k in range(1, NUM_GPUS))
    for num_started in (1, 7):
        fixed = simulate(setup_of(num_started, is_elastic=False))
        balanced, events = played(setup_of(num_started))
        assert balanced.tokens_per_second > 1.2 * fixed.tokens_per_second
        assert balanced.tokens_per_second > 0.8 * best
        assert any(isinstance(event, Notice) for event in events)


def test_every_prompt_is_trained_on_once_while_workers_come_and_go() -> None:
    _, events = played(setup_of(7))
    steps = [event for event in events if isinstance(event, StepFinished)]
    trained = [group.ordinal for step in steps for group in step.groups]
    assert len(set(trained)) == len(trained) == 60 * 8
    assert max(max(step.result.staleness_counts) for step in steps) <= 2


def test_each_step_says_how_many_workers_there_are_if_their_number_may_change() -> None:
    for is_elastic in (True, False):
        _, events = played(setup_of(7, is_elastic=is_elastic))
        metrics = [event.result.metrics for event in events if isinstance(event, StepFinished)]
        numbers = {each["num_rollout_workers"] for each in metrics if "num_rollout_workers" in each}
        assert (len(numbers) > 1) == is_elastic


def test_a_run_begins_with_as_many_workers_as_it_is_told() -> None:
    outcome = simulate(replace(setup_of(3), recipe=make_recipe(
        engine=EngineConfig(num_workers=7, min_workers=3, num_slots=8, cache_tokens=20_000)
    )))  # fmt: skip
    assert 2.99 < outcome.mean_engines < 7


def test_with_a_trainer_of_its_own_fewer_workers_train_as_much() -> None:
    slow = LinearTrainer(step=3.0, token=0.0)
    fixed = simulate(replace(setup_of(6, is_elastic=False), trainer_costs=slow))
    balanced = simulate(setup_of(6, trainer_with=lambda number: slow, switch_seconds=0.0))
    assert balanced.tokens_per_second > 0.9 * fixed.tokens_per_second
    assert balanced.mean_engines < 0.7 * fixed.mean_engines


def test_a_step_with_other_gpus_than_the_last_costs_a_switch() -> None:
    numbers = iter([3, 4, 4])
    split = ElasticSplit(3, lambda number: LinearTrainer(step=float(number), token=0.0), switch_seconds=60.0)
    trainer = SharingTrainer(split, lambda: next(numbers))
    assert [trainer.step_seconds([1]) for _ in range(3)] == [3.0, 64.0, 4.0]
