"""Formats a plan: the splits, the bottleneck of the best, remedies, memory, cost, and possible errors."""

from freerun.config.recipe import Recipe
from freerun.simulation.costs import ROOFLINE_ERROR, RooflineEngine
from freerun.simulation.plan import ClusterPlan, Considered, Limit
from freerun.simulation.splits import Machine, trainer_bytes
from freerun.simulation.workload import Workload

_NUM_SHOWN = 5
MIN_GAIN = 0.03
"""Smaller gains are within the variation of the simulation."""
SECONDS_PER_HOUR = 3600.0


def describe(plan: ClusterPlan, recipe: Recipe, machine: Machine, workload: Workload, *, price: float) -> str:
    """The text of `freerun plan`."""
    shown = [plan.best, *plan.others[: _NUM_SHOWN - 1]]
    if plan.own is not None and plan.own not in shown:
        shown.append(plan.own)
    rows = [_row(each, plan, recipe, price=price) for each in shown]
    header = ("rollouts + trainer", "tokens/s", "step", "engines, trainer busy", "staleness", "a step costs", "")
    lines = [
        f"{plan.best.split.num_gpus} x {machine.kind}, {recipe.train.prompts_per_step} x "
        f"{recipe.sampling.group_size} trajectories a step; completions: {workload.words}",
        "",
        *_aligned([header, *rows]),
        "",
        f"limited by: {describe_limit(plan)}",
        *describe_remedies(plan),
        f"memory: {_memory(plan.best, recipe, machine)}",
        *_cost_lines(plan, recipe, price=price),
        f"error: {error_text(machine)}",
    ]
    return "\n".join(line.rstrip() for line in lines)


def error_text(machine: Machine) -> str:
    """How wrong the figures may be, and why."""
    return (
        f"not from measurements of this model: a roofline of {machine.kind} with constants that were fitted to "
        f"published times; {ROOFLINE_ERROR}. Nothing is said about what is learned"
    )


def _row(each: Considered, plan: ClusterPlan, recipe: Recipe, *, price: float) -> tuple[str, ...]:
    outcome = each.outcome
    marks = [word for is_so, word in ((each is plan.best, "best"), (each is plan.own, "your recipe")) if is_so]
    cost = step_price(each, price)
    return (
        str(each.split),
        describe_rate(each.tokens_per_second),
        f"{each.step_seconds:.1f} s",
        f"{outcome.engine_busy:.0%}, {outcome.trainer_busy:.0%}",
        describe_staleness(outcome.staleness),
        f"${cost:,.2f}" if price else "",
        f"<- {', '.join(marks)}" if marks else "",
    )


def describe_staleness(counts: dict[int, int]) -> str:
    """For example `1: 20 %  2: 80 %`."""
    total = sum(counts.values())
    return "  ".join(f"{staleness}: {count / total:.0%}" for staleness, count in counts.items() if count)


def step_price(each: Considered, price: float) -> float:
    return each.split.num_gpus * price * each.step_seconds / SECONDS_PER_HOUR


def describe_limit(plan: ClusterPlan) -> str:
    """The bottleneck in words."""
    best, limit = plan.best, plan.limit
    outcome, recipe = best.outcome, best.setup.recipe
    if limit is None:
        return (
            f"nothing alone: engines compute {outcome.engine_busy:.0%} of the time and the trainer "
            f"{outcome.trainer_busy:.0%}; only more of everything trains more"
        )
    under_way = recipe.buffer.max_staleness + 1
    words: dict[Limit, str] = {
        "generation": (
            f"generation. The trainer waits {outcome.trainer_waits:.0%} of the time; engines decode "
            f"{outcome.mean_decoding:.0f} sequences at once"
        ),
        "training": (
            f"training. The trainer computes {outcome.trainer_busy:.0%} of the time, and the gate is shut "
            f"{outcome.gate_closed:.0%} of it"
        ),
        "bound": (
            f"the staleness bound. At most {under_way} {'batch is' if under_way == 1 else 'batches are'} under "
            f"way (buffer.max_staleness {recipe.buffer.max_staleness}): the gate is shut "
            f"{outcome.gate_closed:.0%} of the time, and the trainer waits {outcome.trainer_waits:.0%}"
        ),
        "loads": (
            f"weights. Engines stand still for loads {outcome.engine_loading:.0%} of the time and recompute "
            f"caches {outcome.engine_recomputing:.0%}"
        ),
        "graders": f"graders. They are busy {outcome.grader_busy:.0%} of the time",
    }
    return words[limit]


def describe_remedies(plan: ClusterPlan) -> list[str]:
    """The remedies, one per line."""
    base = plan.best.tokens_per_second
    helping = [remedy for remedy in plan.remedies if remedy.factor > 1 + MIN_GAIN]
    useless = [remedy for remedy in plan.remedies if remedy.factor <= 1 + MIN_GAIN]
    lines = ["what would help, each alone:"]
    lines += [
        f"  {remedy.words}: {describe_rate(base * remedy.factor)} tokens/s ({remedy.factor:.2f}x)"
        for remedy in helping
    ]
    if not helping:
        lines.append("  nothing that was tried")
    if useless:
        lines.append(f"  nothing comes of: {'; '.join(remedy.words for remedy in useless)}")
    return lines


def _memory(best: Considered, recipe: Recipe, machine: Machine) -> str:
    rank = trainer_bytes(recipe, machine.shape, best.split.num_trainer_gpus)
    engine = RooflineEngine(machine.gpu, machine.shape, best.split.gpus_per_engine)
    return (
        f"trainer about {rank / 1e9:,.0f} of {machine.gpu.memory_bytes / 1e9:,.0f} GB a rank; an engine has room "
        f"for {engine.cache_tokens / 1e6:,.1f} million tokens in its cache"
    )


def _cost_lines(plan: ClusterPlan, recipe: Recipe, *, price: float) -> list[str]:
    best, num_steps = plan.best, recipe.train.num_steps
    hours = num_steps * best.step_seconds / SECONDS_PER_HOUR
    cost = f", ${num_steps * step_price(best, price):,.0f} at ${price:g} a GPU and hour" if price else ""
    return [f"time: {num_steps} steps take {hours:,.1f} hours{cost}"]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def describe_rate(tokens_per_second: float) -> str:
    """For example `12k` or `1,234`."""
    return f"{tokens_per_second / 1e3:,.0f}k" if tokens_per_second >= 10_000 else f"{tokens_per_second:,.0f}"
