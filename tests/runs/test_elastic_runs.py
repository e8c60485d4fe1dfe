"""Real runs whose rollout workers retire while training is slow and come back when it is quick."""

import re
from pathlib import Path

import psutil
import pytest
from process_table import command_of
from tiny_runs import Run, assert_exactly_once, make_run

ELASTIC = (
    "--engine.num_workers", "2", "--engine.min_workers", "1", "--engine.num_slots", "2",
    "--objective.advantage", "tests.support.slow_then_quick:advantage", "--train.num_steps", "2000",
)  # fmt: skip


def rollout_workers(run: Run) -> set[psutil.Process]:
    return {worker for worker in run.workers() if "rollout_worker" in command_of(worker)}


@pytest.mark.slow
def test_a_worker_retires_and_comes_back_and_every_prompt_is_trained_on_once(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *ELASTIC)
    try:
        run.until_step(1)
        before = rollout_workers(run)
        assert len(before) == 2
        run.until(lambda: "1 of 2 rollout workers" in run.output)
        retired = re.search(r"(rollout-\d) retires", run.output)
        assert retired is not None
        run.until(lambda: f"{retired[1]} is added" in run.output)
        run.until(lambda: len(rollout_workers(run) - before) == 1)
        num_steps = max(map(int, re.findall(r"step (\d+)/", run.output)))
        run.until_step(num_steps + 10)
        run.process.terminate()
        assert run.wait() == 130, run.output
    finally:
        if run.process.poll() is None:
            run.kill()
    assert "died" not in run.output
    num_steps = max(map(int, re.findall(r"step (\d+)/", run.output)))
    assert_exactly_once(run, num_steps=num_steps)
    assert max(t.staleness for v in range(1, num_steps + 1) for t in run.reader().trajectories(v)) <= 4
