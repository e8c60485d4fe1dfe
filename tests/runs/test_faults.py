"""Processes are killed in the middle of real runs: nothing hangs, nothing is lost, nothing is left behind."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from tiny_runs import Run, are_gone, assert_exactly_once, make_run, recipe_of

from freerun.errors import ConfigError
from freerun.events.events import EngineReport
from freerun.session.run_directory import open_run

LONG = ("--train.num_steps", "400", "--checkpoint.every_steps", "2", "--eval.every_steps", "1000")


def resume_to_the_end(recipe: Path, *, num_steps: int, keep: int = 2) -> Run:
    """Resume a run that was cut off and let it finish a little further on."""
    run = Run(recipe, "--resume", "--train.num_steps", str(num_steps), "--checkpoint.keep", str(keep))
    assert run.wait() == 0, run.output
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "name"),
    [("rollout_worker", "rollout-0"), ("reward.worker", "grader-0")],
)
def test_a_killed_worker_is_replaced_and_its_work_done_again(tmp_path: Path, victim: str, name: str) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, "--train.num_steps", "40", "--reward.grader", "tests.support.lively_grader:slow_score")
    run.until_step(3)
    run.workers(victim)[0].kill()
    assert run.wait() == 0, run.output
    assert name in run.output
    assert "SIGKILL" in run.output
    assert_exactly_once(run, num_steps=40)
    assert max(t.staleness for v in range(1, 41) for t in run.reader().trajectories(v)) <= 4


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_starts_is_replaced(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), "--train.num_steps", "3")
    run.until(lambda: bool(run.workers("rollout_worker")))
    run.workers("rollout_worker")[0].kill()
    assert run.wait() == 0, run.output
    assert "worker rollout-0 died, restarted" in run.output
    assert_exactly_once(run, num_steps=3)


@pytest.mark.slow
def test_two_workers_share_the_rollouts_and_one_takes_over_from_the_other(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), "--train.num_steps", "40", "--engine.num_workers", "2")
    run.until_step(5)
    run.workers("rollout_worker")[1].kill()
    assert run.wait() == 0, run.output
    assert_exactly_once(run, num_steps=40)
    reports = run.reader().events("engine_report")
    busy = {r.worker for r in reports if isinstance(r, EngineReport) and r.stats.num_tokens > 0}
    assert busy == {"rollout-0", "rollout-1"}


@pytest.mark.slow
def test_a_silent_worker_is_noticed_and_replaced(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, "--train.num_steps", "30", "--runtime.silence_seconds", "4")
    run.until_step(3)
    run.workers("rollout_worker")[0].send_signal(signal.SIGSTOP)
    assert run.wait() == 0, run.output
    assert "rollout-0" in run.output
    assert_exactly_once(run, num_steps=30)


@pytest.mark.slow
def test_a_killed_trainer_stops_the_run_with_the_reason_and_resume_goes_on(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    # Slow grades: the trainer is mostly idle, and its death must be noticed all the same.
    run = Run(recipe, *LONG, "--reward.grader", "tests.support.lively_grader:slow_score")
    run.until_saved(4)
    workers = run.workers()
    run.workers("train_worker")[0].kill()
    assert run.wait() == 1
    assert "the trainer is gone: trainer" in run.output
    assert "SIGKILL" in run.output
    assert "--resume" in run.output
    assert are_gone(workers)
    num_steps = run.num_steps + 6
    assert_exactly_once(resume_to_the_end(recipe, num_steps=num_steps), num_steps=num_steps)


def test_a_killed_controller_takes_everything_with_it_and_resume_goes_on(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    shared_memory = set(os.listdir("/dev/shm"))
    run = Run(recipe, *LONG)
    run.until_saved(4)
    run.until_step(7)
    workers = run.workers()
    run.kill()
    assert are_gone(workers)
    assert set(os.listdir("/dev/shm")) == shared_memory
    num_steps = run.num_steps + 6
    resumed = resume_to_the_end(recipe, num_steps=num_steps)
    assert_exactly_once(resumed, num_steps=num_steps)
    assert [step.version for step in resumed.reader().steps()] == list(range(1, num_steps + 1))


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_resumes_from_the_start(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, "--train.num_steps", "400", "--checkpoint.every_steps", "300")
    run.until_step(2)
    run.kill()
    assert_exactly_once(resume_to_the_end(recipe, num_steps=5), num_steps=5)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_saves_a_checkpoint_and_leaves_no_process(tmp_path: Path, number: int) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, *LONG, "--checkpoint.every_steps", "300")
    run.until_step(3)
    workers = run.workers()
    run.process.send_signal(number)
    assert run.wait() == 130, run.output
    assert are_gone(workers)
    saved = re.search(r"checkpoint (\d+) saved", run.output)
    assert saved is not None
    assert int(saved[1]) == run.num_steps
    num_steps = run.num_steps + 3
    assert_exactly_once(resume_to_the_end(recipe, num_steps=num_steps), num_steps=num_steps)


@pytest.mark.slow
def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), *LONG)
    run.until_step(2)
    workers = run.workers()
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.01)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    assert are_gone(workers)


@pytest.mark.slow
def test_a_grader_that_always_fails_stops_the_run_with_its_traceback(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), "--reward.grader", "tests.support.lively_grader:broken")
    run.until(lambda: bool(run.workers()) or run.process.poll() is not None)
    workers = run.workers()
    assert run.wait() == 1
    assert "16 rollouts in a row failed" in run.output
    assert "this grader never works" in run.output
    assert are_gone(workers)


@pytest.mark.slow
def test_an_existing_run_is_neither_overwritten_nor_resumed_as_another(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    assert Run(recipe, "--train.num_steps", "1").wait() == 0
    again = Run(recipe, "--train.num_steps", "1")
    assert again.wait() == 2
    assert "--resume (in Python resume=True) continues it" in again.output
    other = Run(recipe, "--resume", "--run.seed", "4")
    assert other.wait() == 2
    assert "run.seed = 4 differs from the run's own 3" in other.output


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    run = Run(recipe, "--train.num_steps", "6")
    assert run.wait() == 0, run.output
    weights = tmp_path / "runs" / "tiny" / "checkpoints" / "step-6" / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    # Fewer steps than the damaged one had, and only one kept: it must not crowd out the new ones.
    resumed = resume_to_the_end(recipe, num_steps=5, keep=1)
    assert "step-6.damaged" in resumed.output
    assert [step.version for step in resumed.reader().steps()] == list(range(1, 6))
    assert_exactly_once(resumed, num_steps=5)
    assert_exactly_once(resume_to_the_end(recipe, num_steps=8), num_steps=8)


def test_a_directory_that_is_no_run_is_never_taken_for_one(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    before = sorted((tmp_path / "model").iterdir())
    recipe = recipe_of(path, "--run.directory", str(tmp_path), "--run.name", "model")
    with (
        pytest.raises(ConfigError, match=r"exists but is not a run \(no config.toml\)"),
        open_run(recipe, resume=False),
    ):
        pass
    assert sorted((tmp_path / "model").iterdir()) == before


@pytest.mark.slow
def test_a_start_that_failed_does_not_keep_the_name(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    failed = Run(recipe, "--reward.grader", "tests.support.lively_grader:no_such_function")
    assert failed.wait() == 1
    assert "no_such_function" in failed.output
    again = Run(recipe, "--train.num_steps", "1")
    assert again.wait() == 0, again.output


@pytest.mark.slow
def test_data_that_changed_cannot_be_resumed_on(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    rows = [{"question": f"{n},{n + 1}", "answer": str(n)} for n in range(10, 40)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = ("--data.task", "file", "--data.path", str(data), "--data.template", "^{question}>")
    first = Run(recipe, *source, "--train.num_steps", "2")
    assert first.wait() == 0, first.output
    data.write_text("".join(json.dumps(row) + "\n" for row in rows[:-5]))
    config = (first.reader_path / "config.toml").read_text()
    resumed = Run(recipe, "--resume", "--train.num_steps", "4")
    assert resumed.wait() == 2
    assert (first.reader_path / "config.toml").read_text() == config
    assert "the training data or the tokenizer has changed" in resumed.output
