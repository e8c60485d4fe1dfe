"""Health rules about the run's operation: the bottleneck, waste, and progress."""

from freerun.events.batch_advice import batch_gain, describe_batch, fixed_seconds
from freerun.events.bound_advice import describe_bound
from freerun.events.metrics import RunState
from freerun.events.rule_window import (
    Complaint,
    is_past_start,
    name_steps,
    percent_of,
    plural,
    samples_at,
    step_seconds,
    values_of,
    window,
)
from freerun.events.split_advice import better_division, describe_division

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
    if state.is_live and waits > TRAINER_WAITS:  # clients may stay away
        return None
    closed = sum(values_of(steps, "gate_closed_seconds")) / seconds
    when = f"of the time in {name_steps(steps)}"  # the whole run may have been different
    if closed > GATE_CLOSED and waits > TRAINER_WAITS:
        text = (
            f"trainer and engines wait for each other: the gate was closed {percent_of(closed)} {when}, the "
            f"trainer waited {percent_of(waits)}"
        )
        share = sum(step.step_seconds for step in steps) / seconds
        advice = describe_bound(state.max_staleness, trainer_share=share)
        return "info", text, _with_batch(advice, state), "#/time"
    if closed > GATE_CLOSED:
        text = f"the trainer is the limit: the gate was closed {percent_of(closed)} {when}"
        advice = _division_advice(state) or "give the trainer more cores or GPUs; more engines would not help"
        return "info", text, _with_batch(advice, state), "#/time"
    if waits > TRAINER_WAITS:
        text = f"generation is the limit: the trainer waited for rollouts {percent_of(waits)} {when}"
        advice = "use more rollout workers or slots (engine.num_workers, engine.num_slots)"
        return "info", text, _with_batch(_division_advice(state) or advice, state), "#/time"
    return None


def _division_advice(state: RunState) -> str:
    """The division of the same GPUs that would have trained more; empty if none is much better."""
    engine_share, trainer_share = state.generate_share, state.train_share
    if state.division is None or engine_share is None or trainer_share is None:
        return ""
    better = better_division(state.division, engine_share=engine_share, trainer_share=trainer_share)
    return describe_division(state.division, better) if better else ""


def _with_batch(advice: str, state: RunState) -> str:
    """The advice, and the gain of larger steps if it is worth mentioning."""
    steps, share, num_engines = state.last_steps, state.generate_share, len(state.engines)
    if state.is_live or share is None or not state.prompts_per_step:  # clients decide how much there is to train
        return advice
    period = (steps[-1].seconds - steps[0].begin) / len(steps)
    gain = batch_gain(
        period=period,
        training=sum(step.step_seconds for step in steps) / len(steps),
        fixed=fixed_seconds([(step.num_tokens, step.step_seconds) for step in steps]),
        generating=share * period,
        loading=state.engine_total("load_seconds") / num_engines / state.num_steps_seen,
    )
    return f"{advice}; {describe_batch(state.prompts_per_step, gain)}" if gain else advice


def at_the_bound(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    counts = [step.result.staleness_counts for step in steps]
    total = sum(sum(of_step.values()) for of_step in counts)
    if not total or state.max_staleness < 2:  # below 1 there is only the synchronous loop
        return None
    share = sum(of_step.get(state.max_staleness, 0) for of_step in counts) / total
    if share <= AT_BOUND:
        return None
    text = (
        f"{percent_of(share)} of the samples of {name_steps(steps)} are as stale as the bound of "
        f"{state.max_staleness} allows: a smaller one would probably cost no speed"
    )
    keep_fresh = "" if state.is_live else "buffer.keep_fresh = true, or "  # clients start when they like
    return "info", text, f"set {keep_fresh}buffer.max_staleness below {state.max_staleness}", "#/time"


MUCH_RECOMPUTED = 0.3
MANY_LOST = 0.05
MIN_GROUPS = 20


def waste(state: RunState, now: float) -> Complaint | None:
    sampled, recomputed = state.engine_total("num_tokens"), state.engine_total("num_recomputed_tokens")
    lost = {name: state.groups[name] for name in ("dropped", "requeued", "failed") if state.groups[name]}
    total = sum(state.groups.values()) - state.groups["passed_over"]
    if total >= MIN_GROUPS and sum(lost.values()) > MANY_LOST * total:
        what = ", ".join(f"{number:,} {name}" for name, number in lost.items())
        text = f"{percent_of(sum(lost.values()) / total)} of the groups were lost: {what}"
        is_failure = lost.get("failed", 0) > sum(lost.values()) / 2
        advice = "read the first failure in log.txt" if is_failure else _against_drops(state)
        return "warn", text, advice, "#/samples?where=lost"
    if is_past_start(state) and sampled and recomputed > MUCH_RECOMPUTED * sampled:
        text = f"loads made engines recompute {percent_of(recomputed / sampled)} as many tokens as they sampled"
        return "info", text, 'set engine.kv_on_load = "keep", or use larger steps', "#/time"
    return None


def _against_drops(state: RunState) -> str:
    if state.is_live:
        return "rated sessions came faster than they are trained on, or too late: set larger steps or bounds"
    return 'set buffer.policy = "wait"'


# ---- does it still move? --------------------------------------------------------------------------------------

STEPS_UNCONFIRMED = 3
STEPS_STALLED = 3
MIN_STALL_SECONDS = 10.0


def weights(state: RunState, now: float) -> Complaint | None:
    waiting = [
        step.seconds
        for step in state.last_steps
        if step.result.version > state.loaded_version and step.seconds >= state.started  # of this session
    ]
    seconds = now - min(waiting, default=now)
    if state.finished or not seconds > max(MIN_STALL_SECONDS, STEPS_UNCONFIRMED * step_seconds(state)):
        return None
    text = f"version {state.loaded_version + 1} has not been confirmed by all engines for {seconds:.0f} s"
    return "alarm", text, "read the logs of the rollout workers", "#/time"


def stall(state: RunState, now: float) -> Complaint | None:
    seconds = now - state.progressed
    if state.finished or not state.steps or state.is_live:  # clients may stay away
        return None
    if not seconds > max(MIN_STALL_SECONDS, STEPS_STALLED * step_seconds(state)):
        return None
    text = f"nothing has happened for {seconds:.0f} s, {seconds / step_seconds(state):.0f} times a step"
    return "alarm", f"{text}{_doing_of_trainer(state)}", "see what the processes do, and read their logs", "#/time"


def _doing_of_trainer(state: RunState) -> str:
    if "trainer" not in state.activities:
        return ""
    doing = state.activities["trainer"].doing
    word = " for" if doing.state == "waiting" and doing.what else ""
    return f"; the trainer is {doing.state}{word} {doing.what}".rstrip()


OLD_SHARE = 0.1
OLD_SECONDS = 600.0


def safety(state: RunState, now: float) -> Complaint | None:
    if state.finished or not state.steps:
        return None
    saved = max(state.started, state.checkpoint.seconds if state.checkpoint else state.started)
    total = now - state.started + (state.eta_seconds(now) or 0.0)
    if not now - saved > max(OLD_SECONDS, OLD_SHARE * total):
        return None
    text = f"nothing has been saved for {(now - saved) / 60:.0f} minutes: that much is lost if the run dies"
    return "warn", text, "lower checkpoint.every_steps", "#/"


def bound(state: RunState, now: float) -> Complaint | None:
    if state.is_bound_held:
        return None
    text = f"staleness {state.worst_staleness} was trained on, max_staleness is {state.max_staleness}"
    return "alarm", text, "please report this", samples_at(state.steps[-1], order="age")


def deaths(state: RunState, now: float) -> Complaint | None:
    if not state.deaths:
        return None
    names = ", ".join(dict.fromkeys(death.worker for death in state.deaths))
    last = state.deaths[-1]
    reason = last.reason.partition("\n")[0]
    text = f"{plural(len(state.deaths), 'worker death')} ({names}); the last: {reason or 'no reason given'}"
    return "warn", text, "read its log in the run's logs/", "#/time"
