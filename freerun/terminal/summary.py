"""The closing summary of a run: results, costs, and the next command."""

import shlex
from pathlib import Path

from freerun.events.accuracy import percent, percent_within
from freerun.events.metrics import RunState, failure_kind
from freerun.model.adapter_directory import is_adapter
from freerun.terminal.wording import brief, count, duration, printable_block, share_of_time


def describe(state: RunState, *, num_bytes: int = 0, shows_failures: bool = False) -> str:
    """The closing summary of a run, whose directory takes `num_bytes`; plain text, lines aligned.

    Where the lines above it show failures, their traceback is not repeated.
    """
    facts = [
        ("outcome", _outcome(state, shows_failures)),
        ("SFT", _sft(state)),
        ("steps", _steps(state)),
        ("held-out", _held_out(state)),
        ("reward", _reward(state)),
        ("staleness", _staleness(state)),
        ("trained", _trained(state)),
        ("generated", _generated(state)),
        ("interrupts", _interrupts(state)),
        ("busy", _busy(state)),
        ("borrowed", _borrowed(state)),
        ("deaths", _deaths(state)),
        ("model", _model(state)),
        ("disk", _disk(state, num_bytes)),
        ("next", _next_command(state)),
    ]
    return "\n".join(f"{name:<11}{printable_block(value)}" for name, value in facts if value)


def _outcome(state: RunState, shows_failures: bool) -> str:
    if state.finished is None:
        return "still running"
    reason = state.finished.reason
    if shows_failures and failure_kind(reason) in state.failures:
        reason = brief(reason)
    return f"{state.finished.outcome}{f': {reason}' if reason else ''}"


def _sft(state: RunState) -> str:
    if not state.sft:
        return ""
    losses = [event.loss for event in state.sft if event.loss is not None]
    held_out = [event.held_out_loss for event in state.sft if event.held_out_loss is not None]
    parts = [f"{state.sft[-1].step} of {state.sft[-1].num_steps} steps"]
    parts += [
        f"{name} {values[0]:.4f} → {values[-1]:.4f}"
        for name, values in (("loss", losses), ("held-out loss", held_out))
        if values
    ]
    if state.is_sft_only:
        parts.append(f"in {duration(state.seconds - state.started)}")
    return ", ".join(parts)


def _steps(state: RunState) -> str:
    if state.is_sft_only:
        return ""
    since = f", from {state.start_version}" if state.start_version else ""
    return f"{state.version} of {state.num_steps}{since}, in {duration(state.seconds - state.started)}"


def _held_out(state: RunState) -> str:
    skipped = f"; {len(state.skipped_evals)} evaluations skipped" if state.skipped_evals else ""
    if not state.evals:
        return skipped.removeprefix("; ")
    first, last = state.evals[0], state.evals[-1]
    accuracy = percent_within(last.accuracy, last.accuracy_low, last.accuracy_high)
    if first is last:
        return f"{accuracy} (version {last.version}){skipped}"
    return f"{percent(first.accuracy)} → {accuracy} (versions {first.version} → {last.version}){skipped}"


def _reward(state: RunState) -> str:
    return f"{state.rewards[0]:.3g} → {state.rewards[-1]:.3g}" if state.rewards else ""


def _staleness(state: RunState) -> str:
    worst = state.worst_staleness
    if worst is None:
        return ""
    if not state.is_bound_held:
        return f"BOUND BROKEN: {worst} was trained on, max_staleness is {state.max_staleness}; please report this"
    mean = sum(value * n for value, n in state.staleness_counts.items()) / state.num_trained
    return f"mean {mean:.2f}, max {worst} of {state.max_staleness}: bound held"


def _trained(state: RunState) -> str:
    outcomes = ", ".join(
        f"{count(state.groups[outcome])} {outcome.replace('_', ' ')}"
        for outcome in ("filtered", "failed", "dropped", "requeued", "passed_over")
        if state.groups[outcome]
    )
    failure = f" (last failure: {brief(state.last_failure)})" if state.groups["failed"] else ""
    if state.is_sft_only:
        return ""
    return f"{count(state.num_trained)} trajectories{_updates(state)}; groups: {outcomes or 'none lost'}{failure}"


def _updates(state: RunState) -> str:
    """Steps without an update must not be counted as training."""
    num_steps, num_idle = state.num_steps_seen, state.num_steps_without_update
    if not num_idle:
        return ""
    where = "in the others " if num_idle < num_steps else ""
    changed = f"{count(num_steps - num_idle)} of {count(num_steps)} steps changed the weights"
    return f" in {count(num_steps)} steps; {changed}: {where}{state.last_reason_without_update}"


def _generated(state: RunState) -> str:
    return f"{count(state.engine_total('num_tokens'))} tokens" if state.engines else ""


def _interrupts(state: RunState) -> str:
    if not state.engines:
        return ""
    total = state.engine_total
    return (
        f"{count(total('num_interrupts'))} sequences in {count(total('num_loads'))} loads; cost: decoding paused "
        f"{duration(total('load_seconds'))}, {count(total('num_recomputed_tokens'))} tokens recomputed"
    )


def _busy(state: RunState) -> str:
    shares = {name: engine.busy_share for name, engine in sorted(state.engines.items())}
    shares["trainer"] = state.train_share
    return ", ".join(f"{name} {share_of_time(share)}" for name, share in shares.items() if share is not None)


def _borrowed(state: RunState) -> str:
    if not state.borrowed_seconds:
        return ""
    return f"the trainer had cores of idle rollout workers for {duration(state.borrowed_seconds)}"


def _deaths(state: RunState) -> str:
    return ", ".join(f"{death.worker} at {duration(death.seconds)}" for death in state.deaths)


def _model(state: RunState) -> str:
    if state.finished and state.finished.model_directory:
        return state.finished.model_directory
    return "no checkpoint was written"


def _disk(state: RunState, num_bytes: int) -> str:
    if not num_bytes:
        return ""
    size = f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
    return f"{size} in {state.directory}"


def _next_command(state: RunState) -> str:
    directory = shlex.quote(state.directory)
    if state.finished and state.finished.outcome == "finished" and state.is_sft_only:
        model = Path(state.finished.model_directory)
        if is_adapter(model):
            return f"freerun model merge {shlex.quote(str(model))} DIR"
        return f"freerun train RECIPE --model.path {shlex.quote(str(model))}"
    if state.finished and state.finished.outcome == "finished":
        return f"freerun eval {directory}"
    # The run's own resolved recipe: it has the name and every override the run was started with.
    return f"freerun train {directory}/config.toml --resume"
