"""Rules of health about running: who is the limit, what is wasted, whether it still moves."""

from freerun.events.metrics import RunState
from freerun.events.rule_window import (
    Complaint,
    is_past_start,
    percent_of,
    samples_at,
    step_seconds,
    values_of,
    window,
)

# ---- who is the limit? ----------------------------------------------------------------------------------------

TRAINER_WAITS = 0.25
GATE_CLOSED = 0.5
AT_BOUND = 0.5


def limit(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    seconds = steps[-1].seconds - steps[0].begin if steps else 0.0
    if seconds <= 0 or state.max_staleness == 0:  # a synchronous run waits by design
        return None
    waits = sum(step.wait_seconds for step in steps) / seconds
    closed = sum(values_of(steps, "gate_closed_seconds")) / seconds
    if closed > GATE_CLOSED:
        text = f"the trainer is the limit: the gate was closed {percent_of(closed)} of the time"
        return "info", text, "more engines would not help; give the trainer more cores or GPUs", "#/time"
    if waits > TRAINER_WAITS:
        text = f"generation is the limit: the trainer waited {percent_of(waits)} of the time for rollouts"
        return "info", text, "more rollout workers or slots (engine.num_workers, engine.num_slots)", "#/time"
    return None


def at_the_bound(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    counts = [step.result.staleness_counts for step in steps]
    total = sum(sum(of_step.values()) for of_step in counts)
    if not total or state.max_staleness == 0:
        return None
    share = sum(of_step.get(state.max_staleness, 0) for of_step in counts) / total
    if share <= AT_BOUND:
        return None
    text = (
        f"{percent_of(share)} of what is trained on is at the bound of {state.max_staleness}: rollouts wait at "
        "the gate; a smaller bound would probably cost no speed"
    )
    return "info", text, f"buffer.max_staleness below {state.max_staleness}", "#/time"


MUCH_RECOMPUTED = 0.3
MANY_LOST = 0.05
MIN_GROUPS = 20


def waste(state: RunState, now: float) -> Complaint | None:
    sampled, recomputed = state.engine_total("num_tokens"), state.engine_total("num_recomputed_tokens")
    lost = {name: state.groups[name] for name in ("dropped", "requeued", "failed") if state.groups[name]}
    total = sum(state.groups.values()) - state.groups["passed_over"]
    if total >= MIN_GROUPS and sum(lost.values()) > MANY_LOST * total:
        what = ", ".join(f"{number:,} {name}" for name, number in lost.items())
        text = f"{percent_of(sum(lost.values()) / total)} of the groups are lost: {what}"
        return "warn", text, 'buffer.policy = "wait", or fix what fails', "#/samples?where=lost"
    if is_past_start(state) and sampled and recomputed > MUCH_RECOMPUTED * sampled:
        text = f"loads made engines recompute {percent_of(recomputed / sampled)} as many tokens as they sampled"
        return "info", text, 'engine.kv_on_load = "keep", or larger steps', "#/time"
    return None


# ---- does it still move? --------------------------------------------------------------------------------------

STEPS_UNCONFIRMED = 3
STEPS_STALLED = 3
MIN_STALL_SECONDS = 10.0


def weights(state: RunState, now: float) -> Complaint | None:
    waiting = [step.seconds for step in state.last_steps if step.result.version > state.loaded_version]
    seconds = now - min(waiting, default=now)
    if state.finished or seconds <= max(MIN_STALL_SECONDS, STEPS_UNCONFIRMED * step_seconds(state)):
        return None
    text = f"version {state.loaded_version + 1} is not confirmed by all engines for {seconds:.0f} s"
    return "alarm", text, "look at the logs of the rollout workers", "#/time"


def stall(state: RunState, now: float) -> Complaint | None:
    seconds = now - state.progressed
    if state.finished or not state.steps:
        return None
    if seconds <= max(MIN_STALL_SECONDS, STEPS_STALLED * step_seconds(state)):
        return None
    trainer = state.activities.get("trainer")
    what = f"; the trainer is {trainer.doing.state} {trainer.doing.what}".rstrip() if trainer else ""
    text = f"nothing has happened for {seconds:.0f} s, {seconds / step_seconds(state):.0f} times a step{what}"
    return "alarm", text, "look at what the processes do, and at their logs", "#/time"


OLD_SHARE = 0.1
OLD_SECONDS = 600.0


def safety(state: RunState, now: float) -> Complaint | None:
    if state.finished or not state.steps:
        return None
    saved = max(state.started, state.checkpoint.seconds if state.checkpoint else state.started)
    total = now - state.started + (state.eta_seconds(now) or 0.0)
    if now - saved <= max(OLD_SECONDS, OLD_SHARE * total):
        return None
    what = "the last checkpoint is" if state.checkpoint else "there is no checkpoint; the run is"
    text = f"{what} {(now - saved) / 60:.0f} minutes old: that much is lost if the run dies"
    return "warn", text, "a smaller checkpoint.every_steps", "#/"


def bound(state: RunState, now: float) -> Complaint | None:
    if state.is_bound_held:
        return None
    text = f"staleness {state.worst_staleness} was trained on, max_staleness is {state.max_staleness}"
    return "alarm", text, "please report this", samples_at(state.steps[-1], order="age")


def deaths(state: RunState, now: float) -> Complaint | None:
    if not state.deaths:
        return None
    names = ", ".join(dict.fromkeys(death.worker for death in state.deaths))
    number = len(state.deaths)
    return "warn", f"{number} worker death{'s' if number > 1 else ''} ({names})", "look at the logs", "#/time"
