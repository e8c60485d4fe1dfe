"""Real runs keep the checkpoint of their best evaluated version, through a kill, and end early if asked to."""

from pathlib import Path

import pytest
from tiny_runs import Run, make_run

from freerun.events.best import best_eval
from freerun.events.run_files import saved_versions
from freerun.session.evaluation_job import find_model

OFTEN = ("--eval.every_steps", "2", "--checkpoint.every_steps", "1", "--checkpoint.keep", "1")


def assert_best_is_there(run: Run) -> None:
    kept = saved_versions(run.reader_path / "checkpoints")
    best = best_eval(run.reader().evals())
    assert best is not None
    assert best.version in kept | {0}
    assert find_model(run.reader_path, "best")[1] == best.version
    assert kept <= {best.version, max(kept)}
    assert f"at version {best.version}: " in run.output


@pytest.mark.slow
def test_a_killed_and_resumed_run_keeps_its_best_version(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, *OFTEN, "--train.num_steps", "400")
    run.until_step(9)
    run.process.kill()
    run.process.wait()
    resumed = Run(recipe, "--resume", *OFTEN, "--train.num_steps", "16")
    if resumed.wait() != 0:  # it had come further than that when it was killed
        resumed = Run(recipe, "--resume", *OFTEN, "--train.num_steps", str(run.num_steps + 8))
        assert resumed.wait() == 0, resumed.output
    assert_best_is_there(resumed)


@pytest.mark.slow
def test_a_run_ends_as_finished_when_no_evaluation_is_better(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, *OFTEN, "--train.num_steps", "400", "--eval.stop_after", "2")
    assert run.wait() == 0, run.output
    assert "2 evaluations without a higher held-out accuracy" in run.output
    assert run.reader().status().state == "finished"
    assert run.reader().status().version < 400
    assert_best_is_there(run)
