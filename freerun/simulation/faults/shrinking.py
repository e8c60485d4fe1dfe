"""Shrinking: finds the smallest scenario that still violates the same property.

Sessions, faults and settings are left out one after another, and stay out if the property is still violated.
This works because the dice give everything else the same numbers as before.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from freerun.errors import ConfigError
from freerun.simulation.faults import durations as d
from freerun.simulation.faults.play import Played, play
from freerun.simulation.faults.scenario import Fault, Scenario

MAX_PLAYS = 250
"""Limit on the smaller scenarios to play."""
Reduction = Callable[[Scenario], Scenario]
"""Leaves out one thing; returns an equal scenario if there is nothing to leave out."""
_PLAIN: tuple[tuple[str, str, Any], ...] = (
    ("objective", "dynamic_sampling", False),
    ("data", "min_pass_rate", 0.0),
    ("buffer", "whole_batches", False),
    ("buffer", "keep_fresh", False),
    ("buffer", "policy", "wait"),
    ("train", "num_ranks", 1),
    ("engine", "kv_on_load", "recompute"),
    ("engine", "min_workers", 0),
    ("engine", "num_workers", 1),
    ("reward", "num_workers", 1),
    ("sampling", "group_size", 1),
    ("train", "prompts_per_step", 1),
    ("checkpoint", "keep_best", False),
    ("runtime", "max_worker_restarts", 1000),
)
"""Neutral values of a scenario's settings."""


def shrink(broken: Played) -> Played:
    """The smallest scenario found that violates the same property."""
    assert broken.violation is not None
    number, smallest, num_plays = broken.violation.number, broken, 0
    is_smaller = True
    while is_smaller and num_plays < MAX_PLAYS:
        is_smaller = False
        for reduce in list(_reductions(smallest.scenario)):
            candidate = reduce(smallest.scenario)
            if candidate != smallest.scenario:
                played, num_plays = play(candidate), num_plays + 1
                if played.violation is not None and played.violation.number == number:
                    smallest, is_smaller = played, True
    return smallest


def _reductions(scenario: Scenario) -> Iterator[Reduction]:
    """The largest reductions come first, and the last session first, so that other sessions keep their numbers."""
    for session in reversed(range(len(scenario.endings))):
        yield partial(Scenario.without_session, session=session)
    for fault in scenario.faults:
        yield partial(_without_fault, fault=fault)
    for field, value in (
        ("failure_rate", 0.0),
        ("tail_seconds", d.PART),
        ("slow_factor", 1.0),
        ("holds_one_version", False),
    ):
        yield partial(dataclasses.replace, **{field: value})
    for section, key, value in _PLAIN:
        yield partial(_with_setting, section=section, key=key, value=value)


def _without_fault(scenario: Scenario, *, fault: Fault) -> Scenario:
    return dataclasses.replace(scenario, faults=tuple(other for other in scenario.faults if other != fault))


def _with_setting(scenario: Scenario, *, section: str, key: str, value: Any) -> Scenario:
    config = dataclasses.replace(getattr(scenario.recipe, section), **{key: value})
    try:
        return dataclasses.replace(scenario, recipe=dataclasses.replace(scenario.recipe, **{section: config}))
    except ConfigError:
        return scenario  # another setting needs it
