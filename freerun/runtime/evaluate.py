"""`freerun eval`: held-out accuracy of a model directory, with rollout workers and graders but no trainer."""

from __future__ import annotations

import asyncio
import itertools
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from freerun.config.recipe import Recipe
from freerun.data.source import PromptSource
from freerun.data.tasks import load_problems
from freerun.data.tokenizer import Tokenizer
from freerun.errors import RolloutError
from freerun.processes.child import Child
from freerun.protocols import Generator, Grader, Workflow
from freerun.reward.pool import GraderPool
from freerun.rollout.single_turn import SingleTurn
from freerun.runtime.messages import FromRollout, StartEngine
from freerun.runtime.placement import place
from freerun.runtime.rollouts import RolloutPool
from freerun.runtime.wording import printable
from freerun.types import Prompt, Trajectory

NUM_SHOWN = 4


def run_eval(recipe: Recipe, model_directory: Path) -> int:
    """Evaluate and print accuracy with its standard error; returns the exit code."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="freerun-eval-") as logs:
        results, num_failed = asyncio.run(_evaluate(recipe, model_directory, Path(logs), console))
    if not results:
        console.print(f"all {num_failed} prompts failed to be graded", markup=False)
        return 1
    for trajectory in [group[0] for group in results[:NUM_SHOWN]]:
        mark = "right" if trajectory.reward.is_correct else "wrong"
        console.print(f"  {mark}: {printable(trajectory.prompt.text + trajectory.completion.text)}", markup=False)
    mean, error = mean_accuracy(results)
    num_samples = recipe.eval.num_samples
    console.print(
        f"held-out accuracy {mean:.3f} ± {error:.3f} (standard error over {len(results)} prompts, "
        f"{num_samples} samples each, temperature {recipe.sampling.temperature:g})"
        + (f"; {num_failed} prompts could not be graded" if num_failed else ""),
        markup=False,
        highlight=False,
    )
    return 0


def mean_accuracy(groups: Sequence[Sequence[Trajectory]]) -> tuple[float, float]:
    """Mean over prompts, and its standard error: samples of one prompt are not independent."""
    means = [sum(t.reward.is_correct for t in group) / len(group) for group in groups]
    mean = sum(means) / len(means)
    if len(means) == 1:
        return mean, math.nan
    variance = sum((value - mean) ** 2 for value in means) / (len(means) - 1)
    return mean, math.sqrt(variance / len(means))


async def _evaluate(
    recipe: Recipe, model_directory: Path, logs: Path, console: Console
) -> tuple[list[Sequence[Trajectory]], int]:
    tokenizer = Tokenizer.load(model_directory)
    source = PromptSource(load_problems(recipe.data), tokenizer, config=recipe.data, seed=recipe.run.seed)
    workflow = SingleTurn(
        recipe.sampling,
        num_samples=recipe.eval.num_samples,
        stop_token_ids=tokenizer.stop_token_ids,
        request_ids=itertools.count(),
    )
    pool = _make_pool(recipe, model_directory, logs)
    grader = GraderPool(recipe.reward, log_directory=logs)
    try:
        await asyncio.gather(pool.start(), grader.start())
        prompts = source.held_out(recipe.eval.num_prompts)
        work = asyncio.ensure_future(_grade_all(prompts, workflow, pool, grader, console))
        lost = asyncio.ensure_future(pool.wait_for_loss())
        done, _ = await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
        if lost in done:
            work.cancel()
            await lost
        lost.cancel()
        return await work
    finally:
        await asyncio.gather(pool.close(), grader.close())


async def _grade_all(
    prompts: list[Prompt], workflow: Workflow, generator: Generator, grader: Grader, console: Console
) -> tuple[list[Sequence[Trajectory]], int]:
    async def attempt(prompt: Prompt) -> Sequence[Trajectory] | None:
        try:
            return await workflow(prompt, generator, grader)
        except RolloutError:
            return None
        finally:
            progress.advance(bar)

    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("evaluating", total=len(prompts))
        results = await asyncio.gather(*(attempt(prompt) for prompt in prompts))
    graded = [result for result in results if result is not None]
    return graded, len(results) - len(graded)


def _make_pool(recipe: Recipe, model_directory: Path, logs: Path) -> RolloutPool:
    placement = place(recipe)

    async def spawn(index: int) -> Child[FromRollout]:
        return await Child.start(
            f"rollout-{index}",
            "freerun.runtime.rollout_worker",
            receives=FromRollout,
            log_path=logs / f"rollout-{index}.log",
            num_threads=recipe.engine.num_threads,
            cores=placement.rollout_cores[index],
        )

    return RolloutPool(
        spawn=spawn,
        start_message=StartEngine(
            model_directory=str(model_directory),
            engine=recipe.engine,
            max_sequence_tokens=recipe.max_sequence_tokens,
            seed=recipe.run.seed,
            weight_buffers=(),
        ),
        num_workers=recipe.engine.num_workers,
        config=recipe.runtime,
        on_report=lambda worker, stats: None,
        on_death=lambda worker, reason, is_restarted: None,
    )
