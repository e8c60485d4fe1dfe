"""Real runs whose trainer has several ranks."""

import re
from pathlib import Path

import pytest
import torch
from tiny_runs import Run, are_gone, assert_exactly_once, make_run

from freerun.model.checkpoint import load_model

RANKS = ("--train.num_ranks", "2")


@pytest.mark.slow
def test_a_killed_rank_stops_the_run_by_name_and_fewer_ranks_resume_it(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(
        recipe, *RANKS, "--train.num_steps", "400", "--checkpoint.every_steps", "2", "--eval.every_steps=1000"
    )
    run.until_saved(2)
    workers, ranks = run.workers(), run.workers("train_worker")
    assert len(ranks) == 2
    ranks[1].kill()
    assert run.wait() == 1
    assert "the trainer is gone: " in run.output
    assert "trainer-1" in run.output
    assert "SIGKILL" in run.output
    assert "--resume" in run.output
    assert are_gone(workers)
    num_steps = max(int(step) for step in re.findall(r"step (\d+)/", run.output))
    num_steps += 4
    resumed = Run(recipe, "--resume", "--train.num_steps", str(num_steps), "--train.num_ranks", "1")
    assert resumed.wait() == 0, resumed.output
    assert_exactly_once(resumed, num_steps=num_steps)
    staleness = [t.staleness for v in range(1, num_steps + 1) for t in resumed.reader().trajectories(v)]
    assert max(staleness) <= 4


@pytest.mark.slow
def test_the_same_synchronous_run_on_two_ranks_twice_has_the_same_bits(tmp_path: Path) -> None:
    weights = []
    for name in ("one", "other"):
        run = Run(
            make_run(tmp_path / name),
            *RANKS,
            "--train.num_steps=2",
            "--buffer.max_staleness=0",
            "--objective.kl_coefficient=0.1",
            "--sft.num_steps=2",
            "--eval.every_steps=100",
        )
        assert run.wait() == 0, run.output
        assert_exactly_once(run, num_steps=2)
        weights.append(dict(load_model(run.reader_path / "checkpoints/step-2/model").named_parameters()))
    one, other = weights
    assert all(torch.equal(one[parameter], other[parameter]) for parameter in one)
