"""A step's metrics are the trainer's and those that the controller adds; a replay knows which are which."""

from typing import Any

import pytest
from simulated_setups import make_recipe, make_setup

from freerun.config.engine import EngineConfig
from freerun.config.recipe import BufferConfig
from freerun.controller import step_facts
from freerun.controller.step_facts import StepFacts
from freerun.simulation.run import simulate
from freerun.types import StepResult


def test_each_metric_that_the_controller_adds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    added_to, added = StepFacts.added_to, set[str]()

    def noting(facts: StepFacts, result: StepResult, *args: Any, **kwargs: Any) -> StepResult:
        whole = added_to(facts, result, *args, **kwargs)
        added.update(whole.metrics.keys() - result.metrics.keys())
        return whole

    monkeypatch.setattr(StepFacts, "added_to", noting)
    elastic = make_recipe(engine=EngineConfig(num_workers=2, min_workers=1, num_slots=8, cache_tokens=20_000))
    fresh = make_recipe(buffer=BufferConfig(max_staleness=2, keep_fresh=True))
    for recipe in (elastic, fresh):
        simulate(make_setup(recipe=recipe, grade_seconds=0.1))
    assert added == step_facts.METRICS
