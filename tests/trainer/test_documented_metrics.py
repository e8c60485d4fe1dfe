"""docs/metrics.md has every metric that a step of any objective reports, and none that no step reports."""

from typing import Any

import pytest
from documented_store import documented_metrics
from fake_groups import a_group_of_sessions
from objective_trainers import packed_trainer
from training_batches import VERSION, config, make_groups, replace, tiny_decoder

from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.types import Group, Reward

NOT_THE_TRAINERS = {
    "gate_closed_seconds",
    "slot_occupancy",
    "num_rollout_workers",
    "batches_ahead",
    "grade_seconds",
    "diverged",
}
"""Added by the controller and by the worker around the trainer."""
EXTRAS: dict[str, dict[str, Any]] = {
    "with a KL term": {"kl_coefficient": 0.1},
    "with an entropy bonus": {"entropy_coefficient": 0.1},
}
OBJECTIVES = PRESETS | {name: ObjectiveConfig(**changes) for name, changes in EXTRAS.items()}


def a_batch() -> list[Group]:
    """Plain samples with a reward of two parts, and sessions."""
    parts = {"number": 1.0, "format": 0.5}
    plain = replace(make_groups(), reward=lambda t: Reward(t.reward.value, t.reward.is_correct, parts))
    return [*plain, a_group_of_sessions(50, VERSION - 2)]


def metrics_of(objective: ObjectiveConfig, groups: list[Group]) -> set[str]:
    names = packed_trainer(tiny_decoder(), config(), objective).step(groups).metrics
    return {"reward/<part>" if name.startswith("reward/") else name for name in names}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_metric_of_a_step_is_documented(name: str) -> None:
    assert metrics_of(OBJECTIVES[name], make_groups()) <= documented_metrics()


def test_every_documented_metric_is_reported_by_some_objective() -> None:
    reported = set.union(*(metrics_of(objective, a_batch()) for objective in OBJECTIVES.values()))
    assert documented_metrics() == reported | NOT_THE_TRAINERS
