"""`freerun eval`: held-out accuracy of a model directory, with rollout workers and graders but no trainer."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from freerun.config.recipe import Recipe
from freerun.data.tokenizer import Tokenizer
from freerun.runtime.background import Background
from freerun.runtime.build import make_grader, make_rollout_pool, make_source, make_workflow
from freerun.runtime.evaluation import Evaluation, evaluate
from freerun.runtime.wording import printable

NUM_SHOWN = 4


def run_eval(recipe: Recipe, model_directory: Path) -> int:
    """Evaluate and print accuracy with its standard error; returns the exit code."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="freerun-eval-") as logs:
        result = asyncio.run(_evaluate(recipe, model_directory, Path(logs), console))
    for line in _describe(result, recipe):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0 if result.groups else 1


def _describe(result: Evaluation, recipe: Recipe) -> list[str]:
    failed = f"; {result.num_failed} prompts could not be graded" if result.num_failed else ""
    if not result.groups:
        return [f"no held-out accuracy{failed}"]
    shown = [group[0] for group in result.groups[:NUM_SHOWN]]
    lines = [
        f"  {'right' if t.reward.is_correct else 'wrong'}: {printable(t.prompt.text + t.completion.text)}"
        for t in shown
    ]
    return [
        *lines,
        f"held-out accuracy {result.accuracy:.3f} ± {result.standard_error:.3f} (standard error over "
        f"{len(result.groups)} prompts, {recipe.eval.num_samples} samples each, "
        f"temperature {recipe.sampling.temperature:g}){failed}",
    ]


async def _evaluate(recipe: Recipe, model_directory: Path, logs: Path, console: Console) -> Evaluation:
    tokenizer = Tokenizer.load(model_directory)
    prompts = make_source(recipe, tokenizer).held_out(recipe.eval.num_prompts)
    workflow = make_workflow(recipe, tokenizer, recipe.eval.num_samples, itertools.count())
    grader = make_grader(recipe, logs)
    pool = make_rollout_pool(
        recipe,
        model_directory=model_directory,
        logs=logs,
        weight_buffers=(),
        on_report=lambda worker, stats: None,
        on_death=lambda worker, reason, is_restarted: None,
    )
    background = Background()
    try:
        await asyncio.gather(pool.start(), grader.start())
        background.start(pool.wait_for_loss())
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("evaluating", total=len(prompts))
            work = evaluate(prompts, workflow, pool, grader, on_prompt=lambda: progress.advance(bar))
            return await background.watch(work)
    finally:
        await background.cancel()
        await asyncio.gather(pool.close(), grader.close())
