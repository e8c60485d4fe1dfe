"""Health rules about learning: data, completions, steps, held-out accuracy, graders."""

import math
from collections.abc import Sequence
from statistics import median

from freerun.events.accuracy import percent
from freerun.events.events import EvalFinished
from freerun.events.kept_facts import Step
from freerun.events.metrics import RunState
from freerun.events.rule_window import (
    MIN_STEPS,
    WINDOW,
    Complaint,
    Severity,
    falls,
    first_of,
    is_past_start,
    mean_of,
    name_steps,
    newest,
    percent_of,
    plural,
    recent,
    samples_at,
    values_of,
    window,
)

# ---- is there anything to learn from? ------------------------------------------------------------------------

MANY_EQUAL, NEARLY_ALL_EQUAL = 0.5, 0.9
MOSTLY = 0.5
ALL_RIGHT = 0.99


def equal_groups(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    equal = mean_of(steps, "equal_group_share")
    if equal is None or equal <= MANY_EQUAL:
        return None
    why, advice = _why_equal(equal, mean_of(steps, "all_right_share"), mean_of(steps, "all_wrong_share"))
    text = (
        f"{percent_of(equal)} of the groups of {name_steps(steps)} have equal rewards{why}; "
        f"only {percent_of(1 - equal)} can teach anything"
    )
    level: Severity = "alarm" if equal > NEARLY_ALL_EQUAL else "warn"
    return level, text, advice, samples_at(steps[-1])


def _why_equal(equal: float, right: float | None, wrong: float | None) -> tuple[str, str]:
    right_share, wrong_share = (right or 0.0) / equal, (wrong or 0.0) / equal
    if right_share > MOSTLY:
        advice = "use harder data, data.max_pass_rate or objective.dynamic_sampling"
        return f" ({percent_of(right_share)} of them all right): the data is too easy", advice
    if wrong_share > MOSTLY:
        advice = "use easier data, solved examples (data.num_shots), SFT first, or data.min_pass_rate"
        return f" ({percent_of(wrong_share)} of them all wrong): the data is too hard", advice
    if right_share + wrong_share > MOSTLY:
        why = f" ({percent_of(right_share)} of them all right, {percent_of(wrong_share)} all wrong)"
        return f"{why}: the data is too easy or too hard", "use data.min_pass_rate and data.max_pass_rate"
    return "", "check the grader: it does not tell completions apart"


def no_update(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    idle = [step for step in steps if step.why_no_update]
    if not idle or _learned_nothing(state):
        return None
    text = f"{len(idle)} of the last {len(steps)} steps made no update: {idle[-1].why_no_update}"
    return "warn", text, _advice_without_update(idle), "#/learning"


def _advice_without_update(idle: Sequence[Step]) -> str:
    if idle[-1].result.metrics.get("skipped_updates"):
        return "lower train.lr"
    right = mean_of(idle, "accuracy")
    if right is not None and right > ALL_RIGHT:
        return "all was right: use harder data, or end in time with eval.target_accuracy"
    return "use more prompts in a step (train.prompts_per_step), or data with mixed results"


def nothing_learned(state: RunState, now: float) -> Complaint | None:
    if not _learned_nothing(state) or (state.num_steps_seen < MIN_STEPS and not state.finished):
        return None
    number = state.num_steps_seen
    subject = f"none of the {number} steps changed" if number > 1 else "the only step did not change"
    text = f"nothing was learned: {subject} the weights ({state.last_reason_without_update})"
    return "alarm", text, "read the completions and their rewards: the data or the grader is wrong", "#/samples"


def _learned_nothing(state: RunState) -> bool:
    return 0 < state.num_steps_seen == state.num_steps_without_update


LOW_VARIETY = 0.25


def variety(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    share = mean_of(steps, "distinct_text_share")
    if share is None or state.group_size == 1:
        return None
    # Even with equal texts a group has one distinct text: in small groups its share alone exceeds the limit.
    least = 1 / state.group_size if state.group_size else 0.0
    if share >= max(LOW_VARIETY, least + 1e-9):
        return None
    number = f"{share * state.group_size:.1f} different texts in a group of {state.group_size}"
    text = f"samples of a prompt are nearly the same: {number if state.group_size else percent_of(share)}"
    advice = "raise sampling.temperature or objective.entropy_coefficient"
    return "warn", text, advice, samples_at(steps[-1])


LOW_ENTROPY = 0.2
HIGH_ENTROPY = 2.0
MUCH_ENTROPY = 1.0
"""In nats: below this entropy, a policy may double it without harm."""


def entropy(state: RunState, now: float) -> Complaint | None:
    first, last = first_of(state, "entropy"), recent(state, "entropy")
    if first is None or last is None or not is_past_start(state) or first <= 0:
        return None
    if last > max(HIGH_ENTROPY * first, first + MUCH_ENTROPY):
        text = f"entropy grew from {first:.2f} to {last:.2f}: the policy samples ever more at random"
        advice = "lower train.lr, objective.entropy_coefficient or sampling.temperature; use an earlier checkpoint"
        return "warn", text, advice, "#/learning"
    if last >= LOW_ENTROPY * first:
        return None
    text = f"entropy fell from {first:.2f} to {last:.2f}: little exploration is left"
    advice = "lower train.lr, or raise objective.entropy_coefficient or objective.clip_high"
    return "warn", text, advice, "#/learning"


# ---- lengths --------------------------------------------------------------------------------------------------

MANY_CUT_OFF = 0.25
MANY_EMPTY = 0.25
LENGTH_FACTOR = 2.0


def cut_off(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    share = mean_of(steps, "cut_off_share")
    if share is None or share <= MANY_CUT_OFF:
        return None
    text = f"{percent_of(share)} of the completions of {name_steps(steps)} are cut off at the length limit"
    advice = "raise sampling.max_completion_tokens, or set a stop string (sampling.stop)"
    return "warn", text, advice, samples_at(steps[-1], where="cut-off")


def empty(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    share = mean_of(steps, "empty_share")
    if share is None or share <= MANY_EMPTY:
        return None
    text = (
        f"{percent_of(share)} of the completions of {name_steps(steps)} have no text: the policy has collapsed, "
        "or a stop string ends them at once"
    )
    advice = (
        "check sampling.stop and what an empty answer earns; else use an earlier checkpoint and a lower train.lr"
    )
    return "alarm", text, advice, samples_at(steps[-1], where="empty")


def length(state: RunState, now: float) -> Complaint | None:
    first, last = first_of(state, "completion_length"), mean_of(window(state), "completion_length")
    if first is None or last is None or not is_past_start(state) or first <= 0:
        return None
    if first / LENGTH_FACTOR < last < first * LENGTH_FACTOR:
        return None
    change = "grew" if last > first else "shrank"
    text = f"completions {change} from {first:.1f} to {last:.1f} tokens"
    advice = "check whether the reward pays for length (reward.overlong_penalty)"
    return "info", text, advice, "#/learning"


# ---- is the step what it should be? ---------------------------------------------------------------------------

LOW_ESS = 0.5
ESS_STEPS = 5
ESS_FALL = 0.7


def effective_sample_size(state: RunState, now: float) -> Complaint | None:
    steps = [step for step in window(state) if values_of([step], "effective_sample_size")]
    sizes = values_of(steps, "effective_sample_size")
    if not sizes:
        return None
    advice = "lower buffer.max_staleness or train.lr, or cap or mask weights (objective.correction)"
    worst = steps[sizes.index(min(sizes))]
    largest = "".join(f" (largest weight {value:.3g})" for value in values_of([worst], "behaviour_weight_max"))
    evidence = samples_at(worst, order="weight")
    if min(sizes) < LOW_ESS:
        text = f"the effective sample size of {name_steps([worst])} was {min(sizes):.2f}: a few stale tokens "
        return "alarm", f"{text}outweigh the others{largest}", advice, evidence
    before = sizes[-ESS_STEPS - 1 :][0]
    if len(sizes) > ESS_STEPS and sizes[-1] < ESS_FALL * before:
        text = f"the effective sample size fell from {before:.2f} to {sizes[-1]:.2f} in {ESS_STEPS} steps{largest}"
        return "warn", text, advice, evidence
    return None


GRADIENT_FACTOR = 5.0
GRADIENT_STEPS = 8


def gradient(state: RunState, now: float) -> Complaint | None:
    norms = values_of(state.last_steps, "grad_norm")
    steps = window(state)
    skipped = sum(values_of(steps, "skipped_updates"))
    advice = "lower train.lr or train.max_grad_norm, or use a longer warm-up (train.warmup_updates)"
    if skipped > 0:
        were = "was skipped: its gradient was" if skipped == 1 else "were skipped: their gradients were"
        return (
            "alarm",
            f"{plural(skipped, 'update')} of {name_steps(steps)} {were} not finite",
            advice,
            "#/learning",
        )
    if len(norms) <= GRADIENT_STEPS:
        return None
    usual = median(norms[-GRADIENT_STEPS - 1 : -1])
    if usual <= 0 or norms[-1] <= GRADIENT_FACTOR * usual:
        return None
    text = f"the last gradient norm, {norms[-1]:.2g}, is {norms[-1] / usual:.0f} times its median"
    return "warn", text, advice, "#/learning"


LARGE_KL = 1e-3


def disagreement(state: RunState, now: float) -> Complaint | None:
    worst = max(values_of(window(state), "engine_trainer_kl"), default=0.0)
    if worst <= LARGE_KL:
        return None
    text = f"engine and trainer give different logprobs to the same tokens and weights (KL {worst:.1g})"
    return "alarm", text, "set engine.dtype to train.dtype; if they are equal, please report this", "#/learning"


# ---- does held-out follow? ------------------------------------------------------------------------------------

LARGE_GAP = 0.15
NUM_FALLING = 3


def _measured(state: RunState) -> list[EvalFinished]:
    return [row for row in state.evals if math.isfinite(row.accuracy)]


def held_out_fell(state: RunState, now: float) -> Complaint | None:
    known = _measured(state)
    if len(known) < 2 or known[-1].accuracy >= known[0].accuracy:
        return None
    first, last = known[0], known[-1]
    is_certain = last.accuracy_high < first.accuracy
    sure = "" if is_certain else ", within the error of the measurement"
    text = (
        f"held-out accuracy {'ended' if state.finished else 'is'} below where it began: {percent(first.accuracy)} "
        f"at version {first.version}, {percent(last.accuracy)} at version {last.version}{sure}"
    )
    advice = "use the best checkpoint instead of the last, lower train.lr, and check what the reward pays for"
    # While the run continues, the next evaluation may be higher again.
    level: Severity = "alarm" if is_certain else "warn" if state.finished else "info"
    return level, text, advice, "#/learning"


def held_out_gap(state: RunState, now: float) -> Complaint | None:
    known = _measured(state)
    if not known or known[-1].version == 0:
        return None
    last = known[-1]
    # Compare with training accuracy at the same time: a run that learns fast is far ahead of its last evaluation.
    near = [step for step in state.last_steps if abs(step.result.version - last.version) <= WINDOW // 2]
    accuracy = mean_of(near, "accuracy") if len(near) >= MIN_STEPS else None
    if accuracy is None or accuracy - last.accuracy <= LARGE_GAP or not last.accuracy_high < accuracy:
        return None
    text = (
        f"training accuracy was {percent_of(accuracy)} when held-out accuracy was {percent_of(last.accuracy)} "
        f"(version {last.version}): the policy memorises, or games the grader"
    )
    return "warn", text, "use more or other data, or fewer steps; read the completions that are right", "#/samples"


def one_part(state: RunState, now: float) -> Complaint | None:
    marks = [mark for mark in state.eval_marks if math.isfinite(mark.accuracy) and mark.metrics][-NUM_FALLING:]
    if len(marks) < NUM_FALLING or not falls([mark.accuracy for mark in marks]):
        return None
    parts = {name for mark in marks for name in mark.metrics if name.startswith("reward/")}
    rising = [
        name.removeprefix("reward/")
        for name in sorted(parts)
        if falls([-mark.metrics.get(name, math.nan) for mark in marks])
    ]
    if not rising:
        return None
    text = f'part "{rising[0]}" of the reward rose over {NUM_FALLING} evaluations while held-out accuracy fell'
    return "warn", text, "give that part a smaller weight (reward.grader)", "#/learning"


# ---- graders --------------------------------------------------------------------------------------------------

MANY_FAILED = 0.05
MIN_GRADES = 20
SLOW = 0.5
ONE_ANSWER = 0.95


def grader(state: RunState, now: float) -> Complaint | None:
    graded = sum(track.num_graded for track in state.graders.values())
    failed = sum(track.num_failed for track in state.graders.values())
    if graded >= MIN_GRADES and failed > MANY_FAILED * graded:
        text = f"{percent_of(failed / graded)} of {graded:,} grades failed"
        return "alarm", text, "read the traceback of the first failure in log.txt", "#/samples?where=failed"
    slowest = max((track.slowest_seconds for track in state.graders.values()), default=0.0)
    if state.grade_limit_seconds > 0 and slowest > SLOW * state.grade_limit_seconds:
        text = f"a grade took {slowest:.1f} s; it fails after {state.grade_limit_seconds:g} s"
        return "warn", text, "use a quicker grader, or raise reward.timeout_seconds", "#/time"
    return _one_answer(state)


def _one_answer(state: RunState) -> Complaint | None:
    """Equal rewards everywhere: from a broken grader, or from one that rightly finds everything correct."""
    steps = window(state)
    share, reward = mean_of(steps, "common_reward_share"), newest(state, "common_reward")
    is_mostly_right = (mean_of(steps, "accuracy") or 0.0) >= MOSTLY
    if share is None or reward is None or share <= ONE_ANSWER or is_mostly_right:
        return None
    source, things, advice = _who_rewards(state)
    text = f"{source} {reward:g} to {percent_of(share)} of the {things} of {name_steps(steps)}"
    return "warn", text, advice, samples_at(steps[-1])


def _who_rewards(state: RunState) -> tuple[str, str, str]:
    """What computes the reward (an episode or a grader), what it judges, and how to check it."""
    if state.is_live:
        return "clients give", "sessions", "check what your clients send as feedback"
    has_idle_graders = bool(state.graders) and not any(track.num_graded for track in state.graders.values())
    if has_idle_graders or newest(state, "num_calls") is not None:
        advice = "check how the episode computes its reward: read a session that should have earned more"
        return "the episode gives", "sessions", advice
    return "the grader gives", "completions", "check that it works: grade a right answer with it"
