"""examples/minimal.py, the whole algorithm in one file: it learns, and it is asynchronous within its bound."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "minimal.py"


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["minimal"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_it_learns_from_stale_and_interrupted_trajectories_within_the_bound(minimal: ModuleType) -> None:
    result = minimal.run(num_steps=80)
    assert mean(result.rewards[-20:]) > 2 * mean(result.rewards[:20])
    assert 0 < max(result.staleness) <= minimal.MAX_STALENESS
    assert result.num_interrupts > 0


def test_the_same_seed_gives_the_same_run(minimal: ModuleType) -> None:
    assert minimal.run(num_steps=3) == minimal.run(num_steps=3)


def test_a_group_that_would_be_too_old_next_time_is_waited_for(minimal: ModuleType) -> None:
    finished = [
        minimal.Group(1, [minimal.Sample("0-1:", ids=[minimal.STOP])]) for _ in range(minimal.BATCH_GROUPS)
    ]
    overdue = minimal.Group(0, [minimal.Sample("0-1:")])
    groups = [overdue, *finished]
    assert minimal.take_batch(groups, version=minimal.MAX_STALENESS) is None
    overdue.samples[0].ids.append(minimal.STOP)
    assert minimal.take_batch(groups, version=minimal.MAX_STALENESS) == [overdue, *finished[:-1]]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
