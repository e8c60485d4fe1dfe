"""Facts about a run: one list for the live view, the log lines and the closing summary.

    RunState ─► facts ─► live     styled, now: `panel.py`
                      ─► line     of a step: `lines.py`
                      ─► summary  of the run: `lines.py`

Pure functions of the state. The text is not sanitised: the renderings make it printable.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from freerun.events.accuracy import percent, percent_within
from freerun.events.metrics import RunState
from freerun.terminal.wording import bar, brief, count, duration, histogram, printable, share_of_time, sparkline

Live = tuple[str | tuple[str, str], ...]
"""Pieces of text, some with a style."""
LOST = {
    "filtered": "",
    "passed_over": "",
    "unrated": "",
    "dropped": "yellow",
    "requeued": "yellow",
    "failed": "bold red",
}
"""Outcomes of groups that are not trained on, with their style."""


@dataclass(frozen=True)
class Fact:
    """One fact in up to three forms; an empty form is unknown, or not shown there."""

    name: str
    live: Live | None = None
    """None if the live view does not show it."""
    line: str = ""
    summary: str = ""


@dataclass(frozen=True)
class Position:
    """The progress of the run: in supervised steps, or in steps of RL."""

    name: str
    done: int
    total: int
    seconds_left: float | None

    @property
    def label(self) -> str:
        return f"{self.name} {self.done}/{self.total}"

    @property
    def left(self) -> str:
        if self.seconds_left is None or self.done >= self.total:
            return ""
        return f"{duration(self.seconds_left)} left"


def facts(state: RunState) -> list[Fact]:
    """All facts, in display order."""
    told = (sft, _steps, _reward, _held_out, _length, _staleness, _generation, _training, _queues, _policy)
    return [fact(state) for fact in (*told, _weights, _interrupts, _trained, _deaths)]


def position(state: RunState, now: float) -> Position:
    """The current position; `now` is on the run's clock."""
    if state.sft and not state.steps:
        return Position("SFT", state.sft[-1].step, state.sft[-1].num_steps, state.sft_seconds_left)
    return Position("step", state.version, state.num_steps, state.eta_seconds(now))


def sft(state: RunState) -> Fact:
    """The progress of SFT; shown until RL begins."""
    if not state.sft:
        return Fact("SFT")
    words, parts = [], [f"{state.sft[-1].step} of {state.sft[-1].num_steps} steps"]
    for name, losses in (
        ("loss", [step.loss for step in state.sft]),
        ("held-out loss", [step.held_out_loss for step in state.sft]),
    ):
        if known := [loss for loss in losses if loss is not None]:
            parts.append(f"{name} {known[0]:.4f} → {known[-1]:.4f}")
        if losses[-1] is not None and not state.steps:
            words.append(f"{name} {losses[-1]:.4f}")
    if state.is_sft_only:
        parts.append(f"in {duration(state.seconds - state.started)}")
    return Fact("SFT", line="  ".join(words), summary=", ".join(parts))


def _steps(state: RunState) -> Fact:
    if state.is_sft_only:
        return Fact("steps")
    since = f", from {state.start_version}" if state.start_version else ""
    took = duration(state.seconds - state.started)
    origin = f"; {printable(state.origin)}" if state.origin else ""
    return Fact("steps", summary=f"{state.version} of {state.num_steps}{since}, in {took}{origin}")


def _reward(state: RunState) -> Fact:
    if not state.rewards:
        return Fact("reward", live=())
    first, last = state.rewards[0], state.rewards[-1]
    parts = " · ".join(f"{printable(name, 16)} {mean:.2g}" for name, mean in state.reward_parts.items())
    course = sparkline(state.rewards[-2000:], 12 if parts else 24)
    return Fact(
        "reward",
        live=((f"{last:<8.3g}", "bold"), (course, "green"), (f"  {parts}", "dim")),
        line=f"reward {last:.2f}" if "reward" in _metrics(state) else "",
        summary=f"{first:.3g} → {last:.3g}",
    )


def _held_out(state: RunState) -> Fact:
    num_skipped = len(state.skipped_evals)
    skipped = f"{num_skipped} evaluation{'s' if num_skipped > 1 else ''} skipped" if num_skipped else ""
    if not state.evals:
        return Fact("held-out", live=(), summary=skipped)
    first, last = state.evals[0], state.evals[-1]
    before = "" if first is last else f"{percent(first.accuracy)} → "
    versions = f"version {last.version}" if first is last else f"versions {first.version} → {last.version}"
    within = percent_within(last.accuracy, last.accuracy_low, last.accuracy_high)
    return Fact(
        "held-out",
        live=((before, "dim"), (percent(last.accuracy), "bold"), (f"  at version {last.version}", "dim")),
        line=f"held-out {percent(last.accuracy)}",
        summary=f"{before}{within} ({versions}){skipped and f'; {skipped}'}",
    )


def _length(state: RunState) -> Fact:
    metrics = _metrics(state)
    length = metrics.get("completion_length")
    if length is None:
        return Fact("length", live=())
    shares = {"cut off": metrics.get("cut_off_share"), "empty": metrics.get("empty_share")}
    words = "".join(f" · {share_of_time(share)} {name}" for name, share in shares.items() if share is not None)
    return Fact(
        "length", live=((f"{length:.1f}", "bold"), (f" tokens{words}", "dim")), line=f"length {length:.1f}"
    )


def _staleness(state: RunState) -> Fact:
    worst, bound = state.worst_staleness, state.max_staleness
    if worst is None:
        return Fact("staleness", live=())
    counts = state.steps[-1].result.staleness_counts
    mean, most = _mean(counts), max(counts, default=0)
    broken = "" if state.is_bound_held else f"BOUND BROKEN: {worst}"
    summary = f"mean {_mean(state.staleness_counts):.2f}, max {worst} of {bound}: bound held"
    if broken:
        summary = f"{broken} was trained on, max_staleness is {bound}; please report this"
    shape = (histogram(counts, max(bound, most)), "magenta")
    return Fact(
        "staleness",
        live=((f"{mean:.1f}", "bold"), f"  max {most} of {bound}  ", shape, "  ", (broken, "bold white on red")),
        line=f"staleness {mean:.1f}/{most} (bound {bound})" if counts else "",
        summary=summary,
    )


def _generation(state: RunState) -> Fact:
    rate, over_step = state.generated_tokens_per_second, state.token_marks.tokens_per_second
    shares = {name: engine.busy_share for name, engine in sorted(state.engines.items())}
    busy = ", ".join(f"{name} {share_of_time(share)}" for name, share in shares.items() if share is not None)
    parts = [f"{count(state.engine_total('num_tokens'))} tokens"] if state.engines else []
    return Fact(
        "generation",
        live=_pace(rate, state.recent_generate_share),
        line="" if over_step is None else f"gen {count(over_step)} tok/s",
        summary="; ".join([*parts, f"busy: {busy}"] if busy else parts),
    )


def _training(state: RunState) -> Fact:
    rate, step = state.trained_tokens_per_second, state.steps[-1] if state.steps else None
    words = [] if rate is None else [f"train {count(rate)} tok/s"]
    if step is not None:
        words.append(f"waited {duration(step.wait_seconds)}")
        words += [f"no update: {step.why_no_update}"] if step.why_no_update else []
    parts = [] if state.train_share is None else [f"busy {share_of_time(state.train_share)}"]
    if state.borrowed_seconds:
        parts.append(f"used cores of idle rollout workers for {duration(state.borrowed_seconds)}")
    return Fact(
        "training",
        live=_pace(rate, state.recent_train_share),
        line="  ".join(words),
        summary="; ".join(parts),
    )


def _queues(state: RunState) -> Fact:
    """What waits between the engines and the trainer, which shows which of them is ahead."""
    if state.queues is None or state.finished:
        return Fact("queues", live=())
    counts, needed = state.queues.counts, state.prompts_per_step
    ready = f"{count(counts.num_ready)}{f' of {count(needed)}' if counts.num_ready < needed else ''} ready"
    num_admitted = counts.gate_capacity // max(1, state.group_size)
    gate = f" · gate {f'open for {count(num_admitted)}' if num_admitted else 'closed'}" if state.group_size else ""
    return Fact("queues", live=((ready, "bold"), (f" · {count(counts.num_running)} in work{gate}", "dim")))


def _weights(state: RunState) -> Fact:
    """The distance between the weights that sampled and those being trained."""
    names = {"effective_sample_size": "ESS", "behaviour_weight_max": "largest", "grad_norm": "gradient norm"}
    metrics = _metrics(state)
    shown = " · ".join(f"{word} {metrics[name]:.2g}" for name, word in names.items() if name in metrics)
    return Fact("weights", live=(shown,) if shown else ())


def _policy(state: RunState) -> Fact:
    names = {"engine_trainer_kl": "KL engine-trainer", "entropy": "entropy"}
    metrics = _metrics(state)
    shown = " · ".join(f"{word} {metrics[name]:.2g}" for name, word in names.items() if name in metrics)
    return Fact("policy", live=(shown,) if shown else ())


def _interrupts(state: RunState) -> Fact:
    if not state.engines:
        return Fact("interrupts", live=())
    total = state.engine_total
    num_loads = total("num_loads")
    number, loads = count(total("num_interrupts")), f"in {count(num_loads)} load{'s' if num_loads != 1 else ''}"
    recomputed = f"{count(total('num_recomputed_tokens'))} tokens recomputed"
    paused = f"decoding paused {duration(total('load_seconds'))}"
    return Fact(
        "interrupts",
        live=((number, "bold"), (f"  {loads}, {recomputed}", "dim")),
        summary=f"{number} sequences {loads}; cost: {paused}, {recomputed}",
    )


def _trained(state: RunState) -> Fact:
    lost = {name: f"{count(state.groups[name])} {name.replace('_', ' ')}" for name in LOST if state.groups[name]}
    failure = f" (last failure: {brief(state.last_failure)})" if state.groups["failed"] else ""
    styled = [(f"{' · ' if i else ''}{lost[name]}", LOST[name]) for i, name in enumerate(lost)]
    groups = f"groups: {', '.join(lost.values()) or 'none lost'}{failure}"
    return Fact(
        "trained",
        live=((count(state.num_trained), "bold"), ("  groups: " if lost else "  no group lost", "dim"), *styled),
        summary="" if state.is_sft_only else f"{count(state.num_trained)} trajectories{_updates(state)}; {groups}",
    )


def _updates(state: RunState) -> str:
    """Steps without an update, which must not be counted as training."""
    num_steps, num_idle = state.num_steps_seen, state.num_steps_without_update
    where = "in the others " if num_idle < num_steps else ""
    changed = f"{count(num_steps - num_idle)} of {count(num_steps)} steps changed the weights"
    reason = f"{where}{state.last_reason_without_update}"
    return f" in {count(num_steps)} steps; {changed}: {reason}" if num_idle else ""


def _deaths(state: RunState) -> Fact:
    deaths = (f"{death.worker} at {duration(death.seconds)}" for death in state.deaths)
    return Fact("deaths", summary=", ".join(deaths))


def _pace(rate: float | None, share: float | None) -> Live:
    if rate is None and share is None:
        return ()
    text = "" if rate is None else f"{count(rate)} tok/s"
    shown: Live = ((f"{text:<14}", "bold"),)
    return shown if share is None else (*shown, (bar(share, 10), "cyan"), (f" {share_of_time(share)} busy", "dim"))


def _metrics(state: RunState) -> Mapping[str, float]:
    """Metrics of the last step."""
    return state.steps[-1].result.metrics if state.steps else {}


def _mean(counts: Mapping[int, int]) -> float:
    return sum(value * number for value, number in counts.items()) / max(1, sum(counts.values()))
