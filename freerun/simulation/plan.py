"""Plans a recipe on a number of GPUs: the best split, its speed, its bottleneck, and remedies.

    candidates ──closed form──► the best few ──simulation──► the best ──twice as much of each──► the bottleneck

The bottleneck is found by giving the run more: twice the engines, a trainer twice as fast, twice as many
batches in flight, weights in half the time, twice the graders. The one that helps most alone is the bottleneck.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from freerun.config.recipe import Recipe
from freerun.simulation.costs import TrainerCosts, WeightCosts
from freerun.simulation.run import Outcome, Setup, simulate
from freerun.simulation.splits import (
    GpuSplit,
    Machine,
    candidates,
    expected_tokens_per_second,
    scale_of,
    setup_of,
    split_of,
    steady_steps,
)
from freerun.simulation.workload import Workload

Limit = Literal["generation", "training", "bound", "loads", "graders"]
NUM_SIMULATED = 6
"""Number of candidates to simulate, chosen by the closed form."""
BALANCED = 0.05
"""If no single change gains more than this, there is no single bottleneck."""


@dataclass(frozen=True)
class Considered:
    """One split and its simulated result, at full scale."""

    split: GpuSplit
    tokens_per_second: float
    outcome: Outcome
    setup: Setup

    @property
    def step_seconds(self) -> float:
        return self.outcome.step_seconds


@dataclass(frozen=True)
class Remedy:
    """A change, and the speedup it gives."""

    words: str
    factor: float


@dataclass(frozen=True)
class ClusterPlan:
    """The result of `freerun plan`."""

    best: Considered
    others: tuple[Considered, ...]
    """Other simulated splits, the best first."""
    own: Considered | None
    """The recipe's own split, if it uses the same number of GPUs."""
    gains: dict[Limit, float]
    """The speedup with twice as much of each thing."""
    remedies: tuple[Remedy, ...]

    @property
    def limit(self) -> Limit | None:
        """The bottleneck; None if there is no single one."""
        limit = max(self.gains, key=lambda name: self.gains[name])
        return limit if self.gains[limit] > 1 + BALANCED else None


def make_plan(recipe: Recipe, machine: Machine, workload: Workload, num_gpus: int) -> ClusterPlan:
    """Simulate the most promising splits and diagnose the best one."""

    def consider(split: GpuSplit, changed: Recipe = recipe) -> Considered:
        return consider_setup(changed, split, setup_of(changed, machine, split, workload))

    possible = candidates(recipe, machine, num_gpus)

    def expected(split: GpuSplit) -> float:
        return expected_tokens_per_second(recipe, machine, split, workload)

    promising = _spread(sorted(possible, key=expected, reverse=True))
    own_split = split_of(recipe)
    own = consider(own_split) if own_split in possible else None
    others = [consider(split) for split in promising if split != own_split]
    ranked = sorted([*others, *([own] if own else [])], key=lambda c: c.tokens_per_second, reverse=True)
    best = ranked[0]
    gains = gains_of(best.setup, best.outcome)
    return ClusterPlan(best, tuple(ranked[1:]), own, gains, tuple(_remedies(recipe, best, gains, consider)))


def _spread(ranked: Sequence[GpuSplit]) -> list[GpuSplit]:
    """The first few splits, with engines of more than one size: the closed form is least reliable about that."""
    chosen: list[GpuSplit] = []
    for split in ranked:
        alike = sum(other.gpus_per_engine == split.gpus_per_engine for other in chosen)
        if alike < NUM_SIMULATED // 2 + 1:
            chosen.append(split)
        if len(chosen) == NUM_SIMULATED:
            break
    return chosen


def consider_setup(recipe: Recipe, split: GpuSplit, setup: Setup) -> Considered:
    """Simulate a split; rates are those of the whole cluster."""
    outcome = simulate(setup)
    return Considered(split, outcome.tokens_per_second * scale_of(recipe, setup), outcome, setup)


# ---- what limits it -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _TwiceAsFast:
    """Implements `costs.TrainerCosts`."""

    costs: TrainerCosts

    def step_seconds(self, lengths: Sequence[int]) -> float:
        return self.costs.step_seconds(lengths) / 2


def doubled(setup: Setup) -> dict[Limit, Setup]:
    """The run with twice as much of each thing; without graders if grading takes no time."""
    recipe, weights = setup.recipe, setup.weights
    twice, bound = replace(recipe.engine, num_workers=2 * recipe.engine.num_workers), recipe.buffer.max_staleness
    later = 2 * bound + 1
    num_warm, num_measured = steady_steps(later)
    setups: dict[Limit, Setup] = {
        "generation": with_recipe(setup, replace(recipe, engine=twice)),
        "training": replace(setup, trainer_costs=_TwiceAsFast(setup.trainer_costs)),
        "bound": replace(
            setup,
            recipe=replace(
                recipe,
                buffer=replace(recipe.buffer, max_staleness=later),
                train=replace(recipe.train, num_steps=num_warm + num_measured),
            ),
            num_warm_steps=num_warm,
        ),
        "loads": replace(
            setup,
            weights=WeightCosts(weights.hold_seconds / 2, weights.transfer_seconds / 2, weights.load_seconds / 2),
        ),
    }
    if setup.grade_seconds:
        more = replace(recipe.reward, num_workers=2 * recipe.reward.num_workers)
        setups["graders"] = with_recipe(setup, replace(recipe, reward=more))
    return setups


def gains_of(setup: Setup, outcome: Outcome) -> dict[Limit, float]:
    """The speedup that each of these setups gives."""
    base = outcome.tokens_per_second
    return {limit: simulate(changed).tokens_per_second / base for limit, changed in doubled(setup).items()}


def with_recipe(setup: Setup, recipe: Recipe) -> Setup:
    return replace(setup, recipe=recipe)


def _remedies(
    recipe: Recipe, best: Considered, gains: dict[Limit, float], consider: Callable[[GpuSplit, Recipe], Considered]
) -> list[Remedy]:
    """Changes that a user can make, each simulated alone."""
    base, train, split = best.tokens_per_second, recipe.train, best.split
    batches = replace(recipe, train=replace(train, prompts_per_step=4 * train.prompts_per_step))
    slots = replace(recipe, engine=replace(recipe.engine, num_slots=2 * recipe.engine.num_slots))
    larger = replace(
        split,
        num_engines=split.num_engines + (split.num_engines + 1) // 2,
        num_trainer_gpus=split.num_trainer_gpus + (split.num_trainer_gpus + 1) // 2,
    )
    more = larger.num_gpus - split.num_gpus
    found = [
        Remedy(
            f"train.prompts_per_step {4 * train.prompts_per_step} (fewer, larger steps)",
            consider(split, batches).tokens_per_second / base,
        ),
        Remedy(f"buffer.max_staleness {2 * recipe.buffer.max_staleness + 1}", gains["bound"]),
        Remedy(
            "weights published and loaded in half the time (lora.rank publishes only an adapter)", gains["loads"]
        ),
        Remedy(f"engine.num_slots {2 * recipe.engine.num_slots}", consider(split, slots).tokens_per_second / base),
        Remedy(f"{more} GPUs more, divided alike", consider(larger, recipe).tokens_per_second / base),
    ]
    if "graders" in gains:
        found.append(Remedy(f"reward.num_workers {2 * recipe.reward.num_workers}", gains["graders"]))
    return sorted(found, key=lambda remedy: remedy.factor, reverse=True)
