"""Real runs with vLLM servers: they are killed in the middle, nothing is lost, nothing is left behind."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from process_table import command_of
from tiny_runs import ROOT, Run, are_gone, assert_exactly_once, make_run
from vllm_rig import SIZES

from freerun.events.reader import RunReader

SERVER = "vllm.entrypoints.openai.api_server"
VLLM = ("--engine.backend", "vllm")
START_SECONDS = 170


def left_behind() -> set[str]:
    """What vLLM's processes make to find each other."""
    temporary = {name for name in os.listdir(tempfile.gettempdir()) if "vllm" in name}
    return temporary | set(os.listdir("/dev/shm"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs of one recipe, and ends what a failed test leaves."""
    recipe, runs = make_run(tmp_path, **SIZES), []

    def start_run(*arguments: str) -> Run:
        runs.append(Run(recipe, *arguments))
        return runs[-1]

    yield start_run
    for run in runs:
        if run.process.poll() is None:
            run.kill()


@pytest.mark.timeout(600)
def test_a_killed_server_is_replaced_and_a_killed_controller_takes_everything_with_it(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    before = left_behind()
    run = start(*VLLM, "--train.num_steps", "400", "--checkpoint.every_steps", "2", "--eval.every_steps", "3")
    run.until(lambda: "step 3/" in run.output, START_SECONDS)
    run.workers(SERVER)[0].kill()
    run.until(lambda: "worker rollout-0 died, restarted" in run.output, 60)
    assert "was killed by signal 9; this log has what it printed" in run.output
    num_steps = steps_of(run) + 6
    run.until(lambda: f"step {num_steps}/" in run.output, START_SECONDS)
    workers = run.workers()
    assert any(SERVER in command_of(worker) for worker in workers)
    run.kill()
    assert are_gone(workers)
    assert left_behind() <= before

    num_steps = steps_of(run) + 4
    resumed = start("--resume", "--train.num_steps", str(num_steps))
    assert resumed.wait(START_SECONDS + 60) == 0, resumed.output
    assert_exactly_once(resumed, num_steps=num_steps)
    reader = resumed.reader()
    trajectories = [t for version in range(1, num_steps + 1) for t in reader.trajectories(version)]
    assert max(t.staleness for t in trajectories) <= 4
    assert len(list(reader.events("eval_finished"))) >= 2
    assert left_behind() <= before
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]


def test_an_evaluation_of_an_adapter_with_the_likeliest_tokens_is_that_of_the_embedded_engine(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    trained = start("--lora.rank", "4", "--train.num_steps", "4", "--checkpoint.every_steps", "4")
    assert trained.wait() == 0, trained.output
    native = greedy_completions(trained.reader_path, tmp_path / "native")
    # What the adapter says depends on how the run went, but not that it says something else than its base.
    task = ("--task", str(tmp_path / "tiny.toml"))
    assert native != greedy_completions(tmp_path / "model", tmp_path / "base", *task)
    assert greedy_completions(trained.reader_path, tmp_path / "vllm", *VLLM) == native


def greedy_completions(model_or_run: Path, output: Path, *arguments: str) -> list[str]:
    command = ["eval", str(model_or_run), "--greedy", "--output", str(output), *arguments]
    ended = subprocess.run(
        [sys.executable, "-m", "freerun.cli.main", *command],
        cwd=ROOT,
        capture_output=True,
        timeout=START_SECONDS + 60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return completions_of(output)


def completions_of(directory: Path) -> list[str]:
    reader = RunReader(directory)
    [evaluation] = reader.evals()
    return [row.completion for row in reader.eval_completions(evaluation.version)]


def steps_of(run: Run) -> int:
    return max(int(step) for step in re.findall(r"step (\d+)/", run.output))
