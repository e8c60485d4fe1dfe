"""Evaluations with real processes: pinned whatever dies, and `freerun eval` with all that it keeps."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import torch
from lively_grader import score
from tiny_models import make_request
from tiny_runs import ROOT, Run, make_run, recipe_of

from freerun.config.recipe import Recipe
from freerun.data.source import PromptSource
from freerun.data.tasks import load_prompts
from freerun.data.tokenizer import Tokenizer
from freerun.engine.engine import Engine
from freerun.errors import FreerunError, PinLostError
from freerun.evaluation.results_directory import results_directory
from freerun.events.reader import RunReader
from freerun.model.checkpoint import load_model
from freerun.processes.local import Child, LocalLauncher
from freerun.session.assembly import make_rollout_pool
from freerun.session.evaluate import Greedy
from freerun.types import Completion, Publication, Request, Sampling
from freerun.weights.buffers import create_buffers, shared_route
from freerun.weights.layout import WeightLayout
from freerun.weights.shared import SharedMemoryChannel
from freerun.workers.messages import FromRollout
from freerun.workers.pinned_version import PinnedVersion
from freerun.workers.rollout_pool import RolloutPool


def evaluate_checkpoint(recipe: Recipe, version: int) -> list[tuple[float, float]]:
    """Mean reward and mean length of each held-out prompt, by an engine that never knew another version."""
    directory = Path(recipe.run.directory) / recipe.run.name / "checkpoints" / f"step-{version}" / "model"
    tokenizer, model = Tokenizer.load(directory), load_model(directory)
    source = PromptSource(load_prompts(recipe.data), tokenizer, config=recipe.data, seed=recipe.run.seed)
    engine = Engine(
        model, recipe.engine, text=tokenizer, max_sequence_tokens=recipe.max_sequence_tokens, seed=recipe.run.seed
    )
    engine.load(version, {name: parameter.data for name, parameter in model.named_parameters()})
    sampling = Sampling(max_completion_tokens=24, stop_token_ids=tokenizer.stop_token_ids)
    prompts = source.held_out(recipe.eval.num_prompts)
    for prompt in prompts:
        engine.submit(
            Request(
                request_id=-prompt.ordinal,
                ordinal=prompt.ordinal,
                prompt_token_ids=prompt.token_ids,
                num_samples=recipe.eval.num_samples,
                sampling=sampling,
            )
        )
    finished: dict[int, tuple[Completion, ...]] = {}
    while engine.has_work:
        finished |= {request.ordinal: completions for request, completions in engine.step()}
    results = []
    for prompt in prompts:
        rewards = [score(prompt.text, c.text, prompt.answer) for c in finished[prompt.ordinal]]
        lengths = [len(c.token_ids) for c in finished[prompt.ordinal]]
        results.append((sum(rewards) / len(rewards), sum(lengths) / len(lengths)))
    return results


@pytest.mark.slow
def test_an_evaluation_in_training_is_what_its_checkpoint_gives_afterwards(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    path = make_run(tmp_path)
    # Slowly, so that a checkpoint is written before the next is due.
    slowly: tuple[str, ...] = ("--reward.grader", "tests.support.lively_grader:slow_score")
    # Few rollouts at a time, so that the grades of an evaluation do not wait behind too many others.
    slowly += ("--buffer.max_staleness", "1", "--train.num_steps", "16")
    overrides = ("--eval.every_steps", "2", "--eval.num_prompts", "6", *slowly)
    run = Run(path, *overrides, "--checkpoint.every_steps", "1", "--checkpoint.keep", "100")
    assert run.wait() == 0, run.output
    recipe = recipe_of(path, *overrides)
    saved = {int(p.name.removeprefix("step-")) for p in (run.reader_path / "checkpoints").glob("step-*")}
    compared = []
    with run.reader() as reader:
        for row in reader.evals():
            if row.version in saved:
                prompts = reader.eval_prompts(row.version)
                recorded = [(prompt.mean_reward, prompt.mean_length) for prompt in prompts]
                assert recorded == evaluate_checkpoint(recipe, row.version)
                compared.append(row.version)
    assert compared[-1] == 16
    assert len(compared) > 1, "only the last version, which nothing interrupts, could be compared"


class Engines:
    """Real rollout workers that this test publishes weights to and kills."""

    def __init__(self, recipe_path: Path, num_workers: int) -> None:
        recipe = recipe_of(recipe_path, "--engine.num_workers", str(num_workers))
        directory = Path(recipe.model.path)
        self.buffers = create_buffers("test")
        self.model = load_model(directory)
        self.weights = SharedMemoryChannel(self.buffers, WeightLayout(self.model))
        self.prompt = Tokenizer.load(directory).encode("^12,18>")
        self.launcher = LocalLauncher(recipe_path.parent / "logs", {}, weights=shared_route(self.buffers))
        self.pool: RolloutPool = make_rollout_pool(
            recipe,
            self.launcher,
            model_directory=directory,
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
        link = list(self.pool._workers)[index].link
        assert isinstance(link, Child)
        return link

    def stop(self, index: int) -> None:
        """Let a worker be busy for as long as it takes: it cannot answer before it is killed."""
        os.kill(self.child(index).pid, signal.SIGSTOP)

    async def close(self) -> None:
        await self.pool.close()
        await self.launcher.close()

    async def sample_and_kill(self, pinned: PinnedVersion, first_id: int) -> list[object]:
        """Four requests; the first worker dies with its share of them before it can answer."""
        self.stop(0)
        work = [self.sample(pinned, first_id + index) for index in range(4)]
        await asyncio.sleep(0)
        self.child(0).kill()
        async with asyncio.timeout(60):
            return list(await asyncio.gather(*work, return_exceptions=True))


def versions_of(result: object) -> set[int]:
    assert isinstance(result, tuple), result
    return {version for completion in result for version in completion.versions.tolist()}


@pytest.mark.slow
def test_a_new_worker_pins_the_newest_version_again_but_an_older_one_is_lost(tmp_path: Path) -> None:
    async def lose_twice() -> tuple[list[object], list[object]]:
        engines = Engines(make_run(tmp_path), num_workers=1)
        try:
            await engines.pool.start()
            await engines.load(0)
            pinned = engines.pool.pin(0)
            while_newest = await engines.sample_and_kill(pinned, 0)
            await engines.load(1)
            return while_newest, await engines.sample_and_kill(pinned, 100)
        finally:
            await engines.close()

    while_newest, while_older = asyncio.run(lose_twice())
    assert [versions_of(result) for result in while_newest] == [{0}] * 4
    assert [type(result) for result in while_older] == [PinLostError] * 4
    assert "version 0 is gone" in str(while_older[0])


def test_another_worker_that_kept_the_version_takes_over(tmp_path: Path) -> None:
    async def lose_one_of_two() -> list[object]:
        engines = Engines(make_run(tmp_path), num_workers=2)
        try:
            await engines.pool.start()
            await engines.load(0)
            pinned = engines.pool.pin(0)
            await engines.load(1)
            return await engines.sample_and_kill(pinned, 0)
        finally:
            await engines.close()

    assert [versions_of(result) for result in asyncio.run(lose_one_of_two())] == [{0}] * 4


def freerun_eval(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "freerun.cli.main", "eval", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_eval_reports_intervals_and_keeps_every_prompt_and_completion(tmp_path: Path) -> None:
    recipe, output = make_run(tmp_path), tmp_path / "evals" / "first"
    task = ("--task", recipe, "--eval.num_prompts", "5", "--eval.num_samples", "4")
    done = freerun_eval(tmp_path / "model", *task, "--k", "1", "4", "--output", output)
    assert done.returncode == 0, done.stderr
    assert "prompts    5 of 174 held-out (" in done.stdout
    assert "(the same as mean@4)" in done.stdout
    assert done.stdout.count("95 % interval [") == 2

    with RunReader(output) as reader:
        prompts, completions = reader.eval_prompts(0), reader.eval_completions(0)
    assert [prompt.num_samples for prompt in prompts] == [4] * 5
    assert len(completions) == 20
    for prompt in prompts:
        own = [row for row in completions if row.ordinal == prompt.ordinal]
        assert sum(row.is_correct for row in own) == prompt.num_correct
        assert all(len(row.token_ids) > 0 and row.answer for row in own)

    # What was recorded is shown again, without sampling anything.
    shown = freerun_eval(output, "--show", "wrong", "--k", "4")
    num_wrong = sum(not row.is_correct for row in completions)
    assert shown.stdout.count("\n  wrong ") == num_wrong > 0
    report = json.loads(freerun_eval(output, "--json").stdout)
    assert msgspec.convert(report["prompts"], list[dict[str, object]])[0]["key"] == prompts[0].key
    assert 0 <= report["pass_at"]["1"]["low"] <= report["pass_at"]["1"]["value"] <= report["pass_at"]["4"]["value"]


def test_an_evaluation_is_closed_to_other_users_and_one_that_fails_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "evals" / "one"
    with results_directory(output):
        (output / "logs").mkdir()
        assert stat.S_IMODE(output.stat().st_mode) == 0o700
    with pytest.raises(FreerunError, match='one" exists; name another'), results_directory(output):
        pass
    empty = tmp_path / "empty"
    empty.mkdir()
    for failed in (tmp_path / "new" / "below" / "two", empty):
        with suppress(KeyboardInterrupt), results_directory(failed):
            (failed / "logs").mkdir()
            (failed / "store.sqlite").touch()
            raise KeyboardInterrupt
    assert list(empty.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"evals", "empty"}


def test_an_evaluation_whose_directory_cannot_be_made_or_whose_data_is_bad_is_one_line(tmp_path: Path) -> None:
    recipe, file = make_run(tmp_path), tmp_path / "file"
    file.write_text("")
    for output in (file, file / "below"):
        with pytest.raises(FreerunError, match="name another output directory"), results_directory(output):
            pass
    arguments = ("--task", recipe, "--sampling.max_completion_tokens", "100000", "--output", tmp_path / "e" / "x")
    failed = freerun_eval(tmp_path / "model", *arguments)
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1
    assert not (tmp_path / "e").exists()


class Recorder:
    """A generator that remembers what it was asked for."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        self.requests.append(request)
        return ()

    def end_session(self, session: int) -> None: ...


def test_a_greedy_generator_asks_for_the_likeliest_tokens_whatever_the_workflow_says() -> None:
    asked = make_request(3, temperature=0.7, top_k=5)
    recorder = Recorder()
    asyncio.run(Greedy(recorder).generate(asked))
    [request] = recorder.requests
    assert (request.sampling.temperature, request.sampling.top_k, request.request_id) == (0.0, 5, 3)


@pytest.mark.slow
def test_an_evaluation_without_a_grade_counts_the_failures_and_gives_the_first_reason(tmp_path: Path) -> None:
    arguments = (tmp_path / "model", "--task", make_run(tmp_path), "--eval.num_prompts", "3")
    done = freerun_eval(
        *arguments, "--reward.grader", "tests.support.lively_grader:broken", "--output", tmp_path / "none"
    )
    assert done.returncode == 1, done.stderr
    assert "3 prompts could not be graded; the first, euclid:" in done.stdout
    assert "this grader never works" in done.stdout
    assert "pass@" not in done.stdout
