"""A scenario: a recipe, timed faults, and how each session of the run ends; determined by a seed alone.

    session 0 ── fault ── fault ── kill -9      session 1 ── Ctrl-C      session 2 ── fault ── end

Each session resumes from the newest earlier checkpoint. Only the first sessions have faults: the last ones must
reach the last step.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from freerun.config.data import DataConfig
from freerun.config.engine import EngineConfig
from freerun.config.objective import ObjectiveConfig
from freerun.config.recipe import (
    BufferConfig,
    CheckpointConfig,
    EvalConfig,
    Recipe,
    RuntimeConfig,
    SamplingConfig,
)
from freerun.config.reward import RewardConfig
from freerun.config.train import TrainConfig
from freerun.simulation.faults import durations as d
from freerun.simulation.faults.dice import Dice

FaultKind = Literal[
    "rollout dies", "rollout loses its machine", "rollout falls silent", "rollout gets stuck",
    "rollout sends nonsense", "rollout loads slowly", "rollout refuses",
    "trainer dies", "trainer falls silent", "trainer gets stuck", "trainer sends nonsense", "trainer slows down",
    "grader dies", "grader gets stuck", "grader sends nonsense", "grader sends a wrong number", "grader fails",
    "disk full", "no room for a process", "controller stands still", "a worker retires", "a worker is added",
]  # fmt: skip
SessionEnd = Literal["end", "Ctrl-C", "Ctrl-C twice", "kill -9"]

PLANNED = frozenset({"a worker retires", "a worker is added"})
"""What a run with `engine.min_workers` does by itself; it explains no failure."""
NUM_STEPS = 8
FRESH_LENGTH = 3
"""Factor for the length of runs with `buffer.keep_fresh`, which changes something only after some ten batches."""
MAX_FAULTS = 8
NUM_ENDINGS = 3
"""Number of sessions that may be ended from outside, and have faults."""
NUM_FREE_SESSIONS = 4
"""Number of later sessions, in which nothing happens from outside."""
FAULT_SECONDS = 50.0
"""Faults happen within this time from the start of their session."""
ENDING_SECONDS = 40.0


@dataclass(frozen=True)
class Fault:
    session: int
    seconds: float
    """Time since the start of the session."""
    kind: FaultKind
    target: int
    """Index of the affected worker, modulo their number."""
    strength: float
    """From 0 to 1: how slow, how long, or how often."""

    def __str__(self) -> str:
        return f"session {self.session}, {self.seconds:.2f} s: {self.kind} ({self.target}, {self.strength:.2f})"


@dataclass(frozen=True)
class Scenario:
    seed: int
    recipe: Recipe
    faults: tuple[Fault, ...]
    endings: tuple[SessionEnd, ...]
    """Endings of the first sessions; later sessions run to the end."""
    failure_rate: float
    """Share of groups that cannot be graded."""
    tail_seconds: float
    """Duration of the longest part of a rollout."""
    slow_factor: float
    """How much slower the first engine is, so that its samples are overtaken."""
    holds_one_version: bool
    """Whether engines load only while no version is pinned, like those of servers."""

    @property
    def num_sessions(self) -> int:
        return len(self.endings) + NUM_FREE_SESSIONS

    def ending(self, session: int) -> SessionEnd:
        return self.endings[session] if session < len(self.endings) else "end"

    def ending_seconds(self, session: int) -> float:
        """Time at which the session is ended from outside."""
        length = FRESH_LENGTH if self.recipe.buffer.keep_fresh else 1
        return length * ENDING_SECONDS * Dice(self.seed).share("ending", session)

    def without_session(self, session: int) -> "Scenario":
        """The scenario without this session: its faults are dropped, and later sessions move up."""
        faults = (
            dataclasses.replace(fault, session=fault.session - (fault.session > session))
            for fault in self.faults
            if fault.session != session
        )
        endings = (*self.endings[:session], *self.endings[session + 1 :])
        return dataclasses.replace(self, faults=tuple(faults), endings=endings)

    def describe(self) -> list[str]:
        """The scenario as lines of text."""
        recipe = self.recipe
        settings = [
            f"sampling.group_size = {recipe.sampling.group_size}",
            f"train.prompts_per_step = {recipe.train.prompts_per_step}",
            f"train.num_ranks = {recipe.train.num_ranks}",
            f"engine.num_workers = {recipe.engine.num_workers}",
            f"engine.min_workers = {recipe.engine.min_workers}",
            f"engine.num_slots = {recipe.engine.num_slots}",
            f"engine.kv_on_load = {recipe.engine.kv_on_load}",
            f"reward.num_workers = {recipe.reward.num_workers}",
            f"buffer.max_staleness = {recipe.buffer.max_staleness}",
            f"buffer.policy = {recipe.buffer.policy}",
            f"buffer.whole_batches = {recipe.buffer.whole_batches}",
            f"buffer.keep_fresh = {recipe.buffer.keep_fresh}",
            f"objective.dynamic_sampling = {recipe.objective.dynamic_sampling}",
            f"data.min_pass_rate = {recipe.data.min_pass_rate}",
            f"eval.every_steps = {recipe.eval.every_steps}",
            f"checkpoint.every_steps = {recipe.checkpoint.every_steps}",
            f"checkpoint.keep_best = {recipe.checkpoint.keep_best}",
            f"runtime.max_worker_restarts = {recipe.runtime.max_worker_restarts}",
        ]
        endings = [
            f"session {session}: {ending} at {self.ending_seconds(session):.2f} s"
            for session, ending in enumerate(self.endings)
            if ending != "end"
        ]
        return [
            f"seed {self.seed}: {len(self.faults)} faults",
            *(f"  {fault}" for fault in self.faults),
            *(f"  {ending}" for ending in endings),
            f"  {self.failure_rate:.0%} of groups fail; parts of rollouts take up to {self.tail_seconds:.0f} s, "
            f"{self.slow_factor:.0f} times that on the first engine; "
            f"engines hold {'one version' if self.holds_one_version else 'pinned versions too'}",
            *(f"  {setting}" for setting in settings),
        ]


def make_scenario(seed: int) -> Scenario:
    """The scenario of a seed; every choice has its own random number."""
    dice = Dice(seed)
    endings = tuple(
        dice.choose(_ENDINGS, "how", session) for session in range(dice.choose(range(NUM_ENDINGS + 1), "sessions"))
    )
    num_faults = dice.choose((0, 1, 2, 3, 4, 6, MAX_FAULTS), "faults")
    num_faulty = max(1, len(endings))
    faults = (
        Fault(
            session=int(num_faulty * dice.share("session of", index) ** 2),
            seconds=FAULT_SECONDS * dice.share("time of", index),
            kind=dice.choose(_KINDS, "kind of", index),
            target=dice.choose(range(6), "target of", index),
            strength=dice.share("strength of", index),
        )
        for index in range(num_faults)
    )
    return Scenario(
        seed=seed,
        recipe=_make_recipe(dice),
        faults=tuple(sorted(faults, key=lambda fault: (fault.session, fault.seconds))),
        endings=endings,
        failure_rate=dice.choose((0.0, 0.0, 0.1, 0.3), "failures"),
        tail_seconds=dice.choose((d.PART, 6.0, 12.0, 40.0), "tail"),
        slow_factor=dice.choose((1.0, 1.0, 4.0), "slow engine"),
        holds_one_version=dice.share("versions") < 0.2,
    )


_KINDS: tuple[FaultKind, ...] = (*get_args(FaultKind), "rollout dies", "rollout dies")
"""One kind is more likely than the others, because the most depends on it."""
_ENDINGS: tuple[SessionEnd, ...] = ("end", "Ctrl-C", "Ctrl-C", "Ctrl-C twice", "kill -9", "kill -9")


def _make_recipe(dice: Dice) -> Recipe:
    group_size = dice.choose((1, 2, 4), "group size")
    max_staleness = dice.choose((0, 1, 2, 4), "staleness")
    whole_batches = dice.share("whole batches") < 0.2
    buffer = BufferConfig(
        max_staleness=max_staleness,
        policy=dice.choose(("wait", "wait", "drop", "requeue"), "policy"),
        whole_batches=whole_batches,
        keep_fresh=max_staleness > 1 and not whole_batches and dice.share("fresh") < 0.4,
    )
    return Recipe(
        data=DataConfig(task="times-tables", min_pass_rate=dice.choose((0.0, 0.0, 0.3), "pass rate")),
        sampling=SamplingConfig(group_size=group_size, max_completion_tokens=3),
        engine=EngineConfig(
            num_workers=dice.choose((1, 2, 3), "engines"),
            min_workers=(
                0 if buffer.starts_whole_batches or buffer.keep_fresh else dice.choose((0, 1), "fewest engines")
            ),
            num_slots=dice.choose((2, 8, 32), "slots"),
            kv_on_load=dice.choose(("recompute", "recompute", "keep", "drain"), "cache"),
        ),
        reward=RewardConfig(
            num_workers=dice.choose((1, 2), "graders"),
            grader="exact",
            max_failures_in_row=1_000_000,
            timeout_seconds=10.0,
        ),
        buffer=buffer,
        objective=ObjectiveConfig(dynamic_sampling=group_size > 1 and dice.share("dynamic sampling") < 0.4),
        train=TrainConfig(
            num_steps=NUM_STEPS * (FRESH_LENGTH if buffer.keep_fresh else 1),
            prompts_per_step=dice.choose((1, 2, 3), "prompts"),
            num_minibatches=1,
            num_ranks=dice.choose((1, 1, 2), "ranks"),
        ),
        eval=EvalConfig(every_steps=dice.choose((1, 2, 5), "evaluations"), num_prompts=3, num_samples=1),
        checkpoint=CheckpointConfig(
            every_steps=dice.choose((1, 2, 5), "checkpoints"), keep_best=dice.share("best") < 0.5
        ),
        runtime=RuntimeConfig(max_worker_restarts=dice.choose((1, 3, 1000), "restarts")),
    )
