"""A simulated run: the real controller, pools, gate and buffer over workers that only take time.

    Setup (a recipe, and durations) ──► simulate ──► Outcome

The recipe has the same effect as in a real run: workers, slots, cache, batch, bound, policy. Data, rewards,
held-out evaluations and checkpoints are left out.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from freerun.buffer.buffer import TrajectoryBuffer
from freerun.config.data import DataConfig
from freerun.config.lora import LoraConfig
from freerun.config.recipe import EvalConfig, ModelConfig, Recipe
from freerun.config.reward import RewardConfig
from freerun.config.sft import SftConfig
from freerun.controller.controller import Controller
from freerun.controller.stages import Stages
from freerun.data.mixture import PromptStream
from freerun.errors import FreerunError
from freerun.events.events import (
    AnyEvent,
    EngineLoaded,
    EngineReport,
    Listener,
    RunFinished,
    RunStarted,
    StepFinished,
)
from freerun.processes.link import WorkerJob
from freerun.rollout.single_turn import SingleTurn, to_sampling
from freerun.session.assembly import make_balance, make_grader, make_rollout_pool, make_stages, make_trainer
from freerun.session.trainer_start import trainer_start
from freerun.simulation.costs import EngineCosts, TrainerCosts, WeightCosts
from freerun.simulation.elastic import ElasticSplit, SharingTrainer
from freerun.simulation.engine import SimulatedEngine
from freerun.simulation.grader import InstantGrader, SimulatedGrader
from freerun.simulation.lengths import DrawnOnce, Lengths
from freerun.simulation.trainer import SimulatedTrainer
from freerun.simulation.virtual_time import run_in_virtual_time
from freerun.simulation.worker_link import SimulatedLauncher, SimulatedLink, SimulatedWorker
from freerun.types import EngineStats, Prompt
from freerun.workers.messages import Loaded

_PATIENCE = 30_000_000.0
"""Timeouts of workers: they never hang here, and a step may take as long as its costs say."""
_NEVER = 1_000_000_000
MakeBuffer = Callable[[Recipe], TrajectoryBuffer]


@dataclass(frozen=True)
class Setup:
    """The run to simulate."""

    recipe: Recipe
    engine_costs: EngineCosts
    trainer_costs: TrainerCosts
    lengths: Lengths
    weights: WeightCosts = field(default_factory=WeightCosts)
    prompt_tokens: int = 128
    """Length of every prompt."""
    grade_seconds: float = 0.0
    """Time to grade one completion; 0 simulates no grader processes."""
    num_warm_steps: int = 0
    """Number of initial steps that the outcome leaves out, while the pipeline fills."""
    elastic: ElasticSplit | None = None
    """For recipes with `engine.min_workers`: how added and retired workers share GPUs with the trainer."""


@dataclass(frozen=True)
class SimulatedStep:
    """A training step."""

    seconds: float
    """When it ended."""
    step_seconds: float
    wait_seconds: float
    gate_closed_seconds: float
    num_tokens: float
    """Number of sampled tokens."""
    num_prompt_tokens: float
    staleness_counts: dict[int, int]


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation, after the warm-up steps."""

    steps: tuple[SimulatedStep, ...]
    begin: float
    """When the last warm-up step ended."""
    seconds: float
    """Time from `begin` to the end of the last step."""
    engine_busy: float
    """Share of the time in which engines computed."""
    engine_loading: float
    """Share of the time in which engines paused for loads."""
    engine_recomputing: float
    """Share of the time in which engines recomputed caches lost to loads or preemptions."""
    mean_decoding: float
    """Mean number of sequences that an engine decoded at once while it computed."""
    grader_busy: float
    sampled_per_second: float
    """Sampled tokens per second, of all engines."""
    num_preemptions: int
    num_rollouts: int
    """Number of rollouts in the whole simulation."""
    mean_engines: float = 0.0
    """Mean number of engines that were running."""

    @property
    def num_tokens(self) -> float:
        """Trained tokens, including prompts."""
        return sum(step.num_tokens + step.num_prompt_tokens for step in self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Trained tokens per second, including prompts."""
        return self.num_tokens / self.seconds

    @property
    def step_seconds(self) -> float:
        """Mean time from one step to the next."""
        return self.seconds / len(self.steps)

    @property
    def trainer_busy(self) -> float:
        return sum(step.step_seconds for step in self.steps) / self.seconds

    @property
    def trainer_waits(self) -> float:
        return sum(step.wait_seconds for step in self.steps) / self.seconds

    @property
    def gate_closed(self) -> float:
        return sum(step.gate_closed_seconds for step in self.steps) / self.seconds

    @property
    def staleness(self) -> dict[int, int]:
        """Number of samples by staleness."""
        total: Counter[int] = Counter()
        for step in self.steps:
            total.update(step.staleness_counts)
        return dict(sorted(total.items()))


def check_can_simulate(recipe: Recipe) -> None:
    """Raise if the simulator would give wrong results for this recipe."""
    if recipe.rollout.runs_sessions or recipe.online.is_on:
        raise FreerunError(
            "sessions of several turns are not simulated (rollout.episode, rollout.tools, rollout.command, "
            "online.feedback_seconds): tools and environments take time that is unknown here; plan a recipe with "
            "single completions"
        )


def simulate(
    setup: Setup,
    *,
    emit: Listener = lambda event: None,
    make_buffer: MakeBuffer | None = None,
    workflow: type[SingleTurn] = SingleTurn,
) -> Outcome:
    """Simulate to the end of `train.num_steps`; `make_buffer` and `workflow` replace the real ones."""
    check_can_simulate(setup.recipe)
    return run_in_virtual_time(_Simulation(setup, emit, make_buffer, workflow).run())


def simulated_recipe(recipe: Recipe) -> Recipe:
    """The recipe without the parts that a simulation leaves out."""
    return replace(
        recipe,
        model=ModelConfig(),
        lora=LoraConfig(),
        sft=SftConfig(),
        data=DataConfig(task="times-tables", max_prompt_tokens=recipe.data.max_prompt_tokens),
        reward=RewardConfig(grader="exact", num_workers=recipe.reward.num_workers, timeout_seconds=1_000_000.0),
        engine=replace(recipe.engine, backend="native", addresses=(), server_arguments=()),
        train=replace(recipe.train, num_ranks=1),
        eval=EvalConfig(every_steps=_NEVER, num_prompts=0),
        checkpoint=replace(recipe.checkpoint, every_steps=_NEVER, keep_best=False),
        runtime=replace(
            recipe.runtime, backend="local", address="", stall_seconds=_PATIENCE, silence_seconds=_PATIENCE
        ),
    )


class _Prompts:
    """A stream of prompts that consist only of an ordinal."""

    fingerprint = "simulated"
    num_too_long = 0

    def __init__(self, num_tokens: int) -> None:
        self.cursor = 0
        self._token_ids = np.zeros(num_tokens, np.int32)

    def at(self, ordinal: int) -> Prompt:
        return Prompt(ordinal=ordinal, key=str(ordinal), text="", answer="", token_ids=self._token_ids)

    def take(self) -> Prompt:
        self.cursor += 1
        return self.at(self.cursor - 1)

    def held_out(self, limit: int) -> list[Prompt]:
        return []


class _Simulation:
    """The stages of one simulated run, and what is recorded about it."""

    def __init__(
        self, setup: Setup, emit: Listener, make_buffer: MakeBuffer | None, workflow: type[SingleTurn]
    ) -> None:
        self._setup = setup
        self._recipe = simulated_recipe(setup.recipe)
        self._lengths = DrawnOnce(setup.lengths, setup.recipe.sampling.group_size)
        self._emit_to = emit
        self._make_buffer = make_buffer
        self._workflow = workflow
        self._engines: list[SimulatedEngine] = []
        self._graders: list[SimulatedGrader] = []
        self._steps: list[SimulatedStep] = []
        self._balance: Listener = lambda event: None
        self._mark = self._counters()
        self._begin = 0.0

    async def run(self) -> Outcome:
        recipe, launcher = self._recipe, SimulatedLauncher(self._make_worker)
        is_graded = self._setup.grade_seconds > 0
        grader = make_grader(recipe, launcher) if is_graded else None
        pool = make_rollout_pool(
            recipe,
            launcher,
            model_directory=Path(),
            on_report=self._on_report,
            on_death=_fail,
            on_loaded=self._on_loaded,
        )
        trainer = await make_trainer(recipe, launcher, on_progress=lambda doing: None)
        start = trainer_start(recipe, None, companions=Path(), reference=Path(), weights=launcher.weights)
        sampling = to_sampling(recipe.sampling, ())
        workflow = self._workflow(sampling, num_samples=recipe.sampling.group_size, request_ids=itertools.count())
        workers = [trainer, pool, *([grader] if grader else [])]
        await asyncio.gather(trainer.start(start), pool.start(), *([grader.start()] if grader else []))
        stages = make_stages(
            recipe,
            None,
            source=cast(PromptStream, _Prompts(self._setup.prompt_tokens)),
            workflow=workflow,
            evaluation_workflow=workflow,
            generator=pool,
            grader=grader or InstantGrader(),
            trainer=trainer,
        )
        if (elastic := self._setup.elastic) is not None:
            while pool.num_workers > elastic.num_started and pool.retire():
                pass
        self._balance = make_balance(recipe, pool, self._emit_to)
        try:
            await self._train(stages, [pool.wait_for_loss(), trainer.wait_for_loss()])
        finally:
            await asyncio.gather(*(worker.close() for worker in workers))
        return self._outcome()

    async def _train(self, stages: Stages, lost_workers: list[Any]) -> None:
        recipe = self._recipe
        if self._make_buffer is not None:
            stages = replace(stages, buffer=self._make_buffer(recipe))

        async def save(state: object) -> None: ...

        self._emit(
            RunStarted(
                seconds=0.0,
                name=recipe.run.name,
                directory="",
                num_steps=recipe.train.num_steps,
                version=0,
                max_staleness=recipe.buffer.max_staleness,
                group_size=recipe.sampling.group_size,
                prompts_per_step=recipe.train.prompts_per_step,
            )
        )
        controller = Controller(recipe, stages, emit=self._emit, save_checkpoint=save, lost_workers=lost_workers)
        await controller.run()
        self._emit(
            RunFinished(seconds=self._now(), outcome="finished", version=controller.version, model_directory="")
        )

    def _make_worker(self, job: WorkerJob, link: SimulatedLink) -> SimulatedWorker:
        setup = self._setup
        if job.role == "trainer":
            costs = SharingTrainer(setup.elastic, self._num_up) if setup.elastic else setup.trainer_costs
            return SimulatedTrainer(link, costs, setup.weights)
        if job.role == "grader":
            self._graders.append(SimulatedGrader(link, grade_seconds=setup.grade_seconds))
            return self._graders[-1]
        engine = SimulatedEngine(
            link,
            setup.engine_costs,
            self._lengths,
            load_seconds=setup.weights.load_seconds,
            start_seconds=setup.elastic.start_seconds if setup.elastic and self._steps else 0.0,
        )
        self._engines.append(engine)
        return engine

    def _num_up(self) -> int:
        return sum(engine.is_up for engine in self._engines)

    # ---- what is noted --------------------------------------------------------------------------

    def _emit(self, event: AnyEvent) -> None:
        if isinstance(event, StepFinished):
            self._note_step(event)
        self._emit_to(event)
        self._balance(event)

    def _note_step(self, event: StepFinished) -> None:
        metrics = event.result.metrics
        step = SimulatedStep(
            seconds=event.seconds,
            step_seconds=event.step_seconds,
            wait_seconds=event.wait_seconds,
            gate_closed_seconds=metrics["gate_closed_seconds"],
            num_tokens=metrics["num_tokens"],
            num_prompt_tokens=metrics["num_prompt_tokens"],
            staleness_counts=event.result.staleness_counts,
        )
        self._steps.append(step)
        if len(self._steps) == self._setup.num_warm_steps:
            self._mark, self._begin = self._counters(), event.seconds

    def _counters(self) -> dict[str, float]:
        engines = self._engines
        return {
            "up": sum(engine.up_seconds for engine in engines),
            "busy": sum(engine.busy_seconds for engine in engines),
            "loading": sum(engine.load_seconds for engine in engines),
            "recomputing": sum(engine.recompute_seconds for engine in engines),
            "decoding": sum(engine.sequence_seconds for engine in engines),
            "preemptions": sum(engine.stats().num_preemptions for engine in engines),
            "sampled": sum(engine.stats().num_tokens for engine in engines),
            "grading": sum(grader.busy_seconds for grader in self._graders),
        }

    def _outcome(self) -> Outcome:
        end, now = self._counters(), self._now()
        grown = {name: end[name] - self._mark.get(name, 0.0) for name in end}
        engine_seconds = max(1e-9, grown["up"])
        steps = tuple(self._steps[self._setup.num_warm_steps :])
        recipe = self._recipe
        return Outcome(
            steps=steps,
            begin=self._begin,
            seconds=max(1e-9, steps[-1].seconds - self._begin),
            engine_busy=grown["busy"] / engine_seconds,
            engine_loading=grown["loading"] / engine_seconds,
            engine_recomputing=grown["recomputing"] / engine_seconds,
            mean_decoding=grown["decoding"] / max(1e-9, grown["busy"]),
            grader_busy=grown["grading"] / max(1e-9, (now - self._begin) * max(1, len(self._graders))),
            sampled_per_second=grown["sampled"] / max(1e-9, now - self._begin),
            num_preemptions=int(grown["preemptions"]),
            num_rollouts=recipe.train.num_steps * recipe.batch_size,
            mean_engines=grown["up"] / max(1e-9, now - self._begin),
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _on_report(self, worker: str, stats: EngineStats) -> None:
        self._emit_to(EngineReport(seconds=self._now(), worker=worker, stats=stats))

    def _on_loaded(self, worker: str, loaded: Loaded) -> None:
        self._emit_to(
            EngineLoaded(
                seconds=self._now(),
                worker=worker,
                version=loaded.published.version,
                load_seconds=loaded.load_seconds,
                num_interrupts=loaded.num_interrupts,
                drain_seconds=loaded.drain_seconds,
            )
        )


def _fail(worker: str, reason: str, is_restarted: bool) -> None:
    raise RuntimeError(f"{worker} died in a simulation without faults: {reason}")
