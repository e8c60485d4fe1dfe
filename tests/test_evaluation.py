"""Evaluations end to end: pinned in training whatever dies, and `freerun eval` with all it keeps."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tiny_runs import ROOT, Run, make_run, recipe_of

from freerun.data.tokenizer import Tokenizer
from freerun.errors import PinLostError
from freerun.events.events import EvalSkipped
from freerun.events.reader import RunReader
from freerun.model.checkpoint import load_model
from freerun.processes.child import Child
from freerun.runtime.build import make_rollout_pool
from freerun.runtime.messages import FromRollout
from freerun.runtime.rollouts import PinnedVersion, RolloutPool
from freerun.types import Completion, Publication, Request, Sampling
from freerun.weights.buffers import close_buffers, create_buffers
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedWeights


def test_every_evaluation_of_a_run_is_recorded_with_its_problems_at_one_version(tmp_path: Path) -> None:
    run = Run(make_run(tmp_path), "--eval.every_steps", "2", "--eval.num_prompts", "6")
    assert run.wait() == 0, run.output
    with run.reader() as reader:
        evals = reader.evals()
        skipped = [event for event in reader.events("eval_skipped") if isinstance(event, EvalSkipped)]
        assert sorted([e.version for e in evals] + [e.version for e in skipped]) == [0, 2, 4, 6, 8]
        assert evals[-1].version == 8
        assert all("still runs" in event.reason for event in skipped), "mixed or lost versions are skipped too"
        for row in evals:
            problems = reader.eval_problems(row.version)
            assert [problem.ordinal for problem in problems] == [-1, -2, -3, -4, -5, -6]
            right = [problem.num_correct / problem.num_samples for problem in problems]
            assert row.accuracy == pytest.approx(sum(right) / 6)
            assert row.accuracy_low <= row.accuracy <= row.accuracy_high
            assert reader.eval_completions(row.version) == []


class Engines:
    """Real rollout workers that this test publishes weights to and kills."""

    def __init__(self, recipe_path: Path, num_workers: int) -> None:
        recipe = recipe_of(recipe_path, "--engine.num_workers", str(num_workers))
        directory = Path(recipe.model.path)
        self.buffers = create_buffers("test")
        self.model = load_model(directory)
        self.weights = SharedWeights(self.buffers, WeightLayout(self.model))
        self.prompt = Tokenizer.load(directory).encode("^12,18>")
        self.pool: RolloutPool = make_rollout_pool(
            recipe,
            model_directory=directory,
            logs=recipe_path.parent / "logs",
            weight_buffers=self.buffers,
            on_report=lambda worker, stats: None,
            on_death=lambda worker, reason, is_restarted: None,
        )

    async def load(self, version: int) -> None:
        self.weights.write(version, dict(self.model.named_parameters()))
        await self.pool.load(Publication(version=version, checksum=self.weights.checksum(version)))

    def sample(self, pinned: PinnedVersion, index: int) -> asyncio.Task[tuple[Completion, ...]]:
        sampling = Sampling(max_completion_tokens=24)
        request = Request(
            request_id=index, ordinal=-1, prompt_token_ids=self.prompt, num_samples=1, sampling=sampling
        )
        return asyncio.create_task(pinned.generate(request))

    def child(self, index: int) -> Child[FromRollout]:
        return self.pool._workers[index].child

    def stop(self, index: int) -> None:
        """Let a worker be busy for as long as it takes: it cannot answer before it is killed."""
        os.kill(self.child(index).pid, signal.SIGSTOP)

    async def close(self) -> None:
        await self.pool.close()
        close_buffers(self.buffers)


async def lose_workers(recipe_path: Path, *, num_workers: int, is_newest: bool) -> list[object]:
    """Kill the first worker in the middle of an evaluation of version 0, before or after version 1 has arrived."""
    engines = Engines(recipe_path, num_workers)
    try:
        await engines.pool.start()
        await engines.load(0)
        pinned = engines.pool.pin(0)
        if not is_newest:
            await engines.load(1)
        engines.stop(0)
        work = [engines.sample(pinned, index) for index in range(2 * num_workers)]
        await asyncio.sleep(0.05)
        engines.child(0).kill()
        async with asyncio.timeout(60):
            return list(await asyncio.gather(*work, return_exceptions=True))
    finally:
        await engines.close()


def versions_of(result: object) -> set[int]:
    assert isinstance(result, tuple)
    return {span.version for completion in result for span in completion.spans}


def test_a_pinned_version_that_dies_with_its_worker_is_lost_and_not_replaced_by_another(tmp_path: Path) -> None:
    results = asyncio.run(lose_workers(make_run(tmp_path), num_workers=1, is_newest=False))
    assert [type(result) for result in results] == [PinLostError] * 2
    assert "version 0 is gone" in str(results[0])


def test_a_new_worker_pins_again_what_is_still_the_newest(tmp_path: Path) -> None:
    results = asyncio.run(lose_workers(make_run(tmp_path), num_workers=1, is_newest=True))
    assert [versions_of(result) for result in results] == [{0}] * 2


def test_another_worker_that_kept_the_version_takes_over(tmp_path: Path) -> None:
    results = asyncio.run(lose_workers(make_run(tmp_path), num_workers=2, is_newest=False))
    assert [versions_of(result) for result in results] == [{0}] * 4


def freerun_eval(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "freerun.cli.main", "eval", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_eval_reports_intervals_and_keeps_every_problem_and_completion(tmp_path: Path) -> None:
    recipe, output = make_run(tmp_path), tmp_path / "evals" / "first"
    task = ("--task", recipe, "--eval.num_prompts", "5", "--eval.num_samples", "4")
    done = freerun_eval(tmp_path / "model", *task, "--k", "1", "4", "--output", output)
    assert done.returncode == 0, done.stderr
    assert "5 of the " in done.stdout
    assert "(the same as mean@4)" in done.stdout
    assert done.stdout.count("95 % interval [") == 2

    with RunReader(output) as reader:
        problems, completions = reader.eval_problems(0), reader.eval_completions(0)
    assert [problem.num_samples for problem in problems] == [4] * 5
    assert len(completions) == 20
    for problem in problems:
        own = [row for row in completions if row.ordinal == problem.ordinal]
        assert sum(row.is_correct for row in own) == problem.num_correct
        assert all(len(row.token_ids) > 0 and row.answer for row in own)

    # What was recorded is shown again, without sampling anything.
    shown = freerun_eval(output, "--show", "wrong", "--k", "4")
    num_wrong = sum(not row.is_correct for row in completions)
    assert shown.stdout.count("\n  wrong ") == num_wrong > 0
    report = json.loads(freerun_eval(output, "--json").stdout)
    assert msgspec.convert(report["problems"], list[dict[str, object]])[0]["key"] == problems[0].key
    assert 0 <= report["pass_at"]["1"]["low"] <= report["pass_at"]["1"]["value"] <= report["pass_at"]["4"]["value"]


def test_a_greedy_evaluation_of_training_problems_is_the_same_every_time(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    arguments = (
        tmp_path / "model",
        "--task",
        recipe,
        "--greedy",
        "--split",
        "training",
        "--eval.num_prompts",
        "3",
    )
    tokens = []
    for seed in (1, 2):
        output = tmp_path / f"greedy-{seed}"
        done = freerun_eval(*arguments, "--engine.num_slots", seed, "--output", output)
        assert done.returncode == 0, done.stderr
        assert "1 sample each, greedy" in done.stdout
        with RunReader(output) as reader:
            assert [row.ordinal for row in reader.eval_completions(0)] == [0, 1, 2]
            tokens.append([row.token_ids.tolist() for row in reader.eval_completions(0)])
    assert tokens[0] == tokens[1]


def test_an_evaluation_that_cannot_grade_says_why_and_fails(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    output = tmp_path / "broken"
    grader = ("--reward.grader", "tests.lively_grader:no_such_function")
    done = freerun_eval(tmp_path / "model", "--task", recipe, "--output", output, *grader)
    assert done.returncode != 0
    assert "no_such_function" in done.stdout + done.stderr
