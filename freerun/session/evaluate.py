"""`freerun eval`: one evaluation with rollout workers and graders but no trainer, recorded in its own store."""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from freerun.data.tokenizer import Tokenizer
from freerun.evaluation.evaluation import Evaluation, evaluate
from freerun.evaluation.job import EvalJob, save_job
from freerun.evaluation.results_directory import results_directory
from freerun.events.events import RunFinished
from freerun.events.store import Store
from freerun.processes.supervision import Supervisor
from freerun.protocols import Generator
from freerun.session.agents import Workflows, make_agents
from freerun.session.assembly import make_grader, make_rollout_pool
from freerun.session.attachments import StopSwitch
from freerun.session.build import make_launcher
from freerun.session.preflight import check_setup, read_prompts
from freerun.terminal.lines import ProgressLines
from freerun.types import Completion, Prompt, Request


class Greedy:
    """A generator that always takes the most likely token."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def generate(self, request: Request) -> tuple[Completion, ...]:
        sampling = msgspec.structs.replace(request.sampling, temperature=0.0)
        return await self._generator.generate(msgspec.structs.replace(request, sampling=sampling))

    def end_session(self, session: int) -> None:
        self._generator.end_session(session)


def run_eval(job: EvalJob, directory: Path, *, stop: StopSwitch | None = None) -> None:
    """Evaluate, with progress on stderr. The results go to a new `directory`; a failed evaluation leaves none."""
    began = time.monotonic()

    async def evaluate_job() -> Evaluation:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if stop is not None and task is not None:
            stop.connect(lambda: loop.call_soon_threadsafe(task.cancel))
        return await _evaluate(job, directory / "logs", tokenizer, available[: job.recipe.eval.num_prompts])

    check_setup(job.recipe, trains=False)
    tokenizer, available = read_prompts(job)
    with results_directory(directory):
        result = asyncio.run(evaluate_job())
        seconds = time.monotonic() - began
        with Store(directory) as store:
            num_samples = job.recipe.eval.num_samples
            store(result.as_event(seconds=seconds, version=job.version, num_samples=num_samples))
            store(RunFinished(seconds=seconds, outcome="finished", version=job.version, model_directory=job.model))
        save_job(dataclasses.replace(job, num_available=len(available)), directory)


async def _evaluate(job: EvalJob, logs: Path, tokenizer: Tokenizer, prompts: Sequence[Prompt]) -> Evaluation:
    recipe, model = job.recipe, Path(job.model)
    launcher = make_launcher(recipe, logs, publishes=False)
    grader = make_grader(recipe, launcher)
    pool = make_rollout_pool(
        recipe,
        launcher,
        model_directory=model,
        on_report=lambda worker, stats: None,
        on_death=lambda worker, reason, is_restarted: None,
    )
    agents = make_agents(
        recipe, tokenizer, launcher, model_directory=model, on_death=lambda worker, reason, is_restarted: None
    )
    workflow = Workflows(recipe, tokenizer, agents).evaluation()
    workers = [worker for worker in (pool, grader, agents) if worker is not None]
    background, console = Supervisor(), Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("starting the workers", total=len(prompts))
            await asyncio.gather(*(worker.start() for worker in workers))
            background.start(pool.wait_for_loss())
            if agents is not None:
                background.start(agents.wait_for_loss())
            progress.update(bar, description="evaluating")
            generator = Greedy(pool) if job.is_greedy else pool
            lines, num_done = ProgressLines(console, len(prompts)), itertools.count(1)

            def on_prompt() -> None:
                progress.advance(bar)
                lines(next(num_done), "prompts evaluated")

            work = evaluate(prompts, workflow, generator, grader, on_prompt=on_prompt)
            return await background.watch(work)
    finally:
        await background.close()
        await asyncio.gather(*(worker.close() for worker in workers))
        await launcher.close()
