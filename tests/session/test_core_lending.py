"""Cores that move, the controller's side: who is idle, and what the trainer is offered."""

import os
from pathlib import Path

import pytest
from tiny_runs import Run, make_run, recipe_of

from freerun.events.events import CoresMoved
from freerun.session import devices
from freerun.session.build import make_core_lending
from freerun.session.core_lending import CoreLending

Cores = tuple[int, ...]


def lending(rollout_cores: dict[str, Cores], trainer_cores: Cores) -> tuple[CoreLending, list[Cores]]:
    offers: list[Cores] = []
    return CoreLending(trainer_cores=trainer_cores, rollout_cores=rollout_cores, offer=offers.append), offers


def test_the_cores_of_idle_rollout_workers_are_the_trainers_until_they_have_work() -> None:
    policy, offers = lending({"rollout-0": (0, 1), "rollout-1": (2, 3)}, (4,))
    policy.note("rollout-1", is_busy=False)
    policy.note("rollout-0", is_busy=False)
    policy.note("rollout-1", is_busy=True)
    policy.note("rollout-0", is_busy=True)
    assert offers == [(2, 3, 4), (0, 1, 2, 3, 4), (0, 1, 4), (4,)]


def test_nothing_is_offered_twice() -> None:
    policy, offers = lending({"rollout-0": (0,)}, (1,))
    for _ in range(2):
        policy.note("rollout-0", is_busy=False)
    assert offers == [(0, 1)]


def test_whether_cores_are_lent_is_known_without_asking_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked on the event loop, which would stand still while a process imports torch."""

    def count_gpus() -> int:
        raise AssertionError("torch is asked")

    monkeypatch.setattr(devices, "count_gpus", count_gpus)
    path = make_run(tmp_path)
    assert make_core_lending(recipe_of(path), offer=lambda cores: None) is not None
    assert make_core_lending(recipe_of(path, "--train.num_threads", "1"), offer=lambda cores: None) is None


def test_nothing_is_lent_while_a_busy_rollout_worker_sits_on_the_trainers_core() -> None:
    policy, offers = lending({"rollout-0": (0,), "rollout-1": (1,)}, (1,))
    policy.note("rollout-0", is_busy=False)
    assert offers == []
    policy.note("rollout-1", is_busy=False)
    policy.note("rollout-1", is_busy=True)
    assert offers == [(0, 1), (1,)]


@pytest.mark.slow
def test_a_synchronous_run_trains_on_the_engines_core_and_gives_it_back(tmp_path: Path) -> None:
    """With `max_staleness` 0 an engine stands still in a step, but for the evaluation of version 0."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    evals = ("--eval.every_steps", "100", "--eval.num_prompts", "1", "--eval.num_samples", "1")
    run = Run(make_run(tmp_path), "--buffer.max_staleness", "0", "--train.num_steps", "12", *evals)
    assert run.wait() == 0, run.output
    borrows_by_step: list[list[bool]] = [[]]
    for event in run.reader().events("cores_moved", "step_finished"):
        if isinstance(event, CoresMoved):
            borrows_by_step[-1].append(event.num_borrowed > 0)
        else:
            borrows_by_step.append([])
    # On a busy machine the news that an engine is idle may miss a step as short as these.
    lent = [borrows for borrows in borrows_by_step[2:12] if borrows]
    assert any(not borrows[0] and borrows[-1] for borrows in lent), "given back to generate, lent to train"
    assert "used cores of idle rollout workers for" in run.output
