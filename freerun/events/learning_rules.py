"""Rules of health about learning: data, completions, steps, held-out accuracy, graders."""

import math
from statistics import median

from freerun.events.metrics import RunState
from freerun.events.rule_window import (
    MIN_STEPS,
    Complaint,
    Severity,
    falls,
    first_of,
    is_past_start,
    mean_of,
    name_steps,
    newest,
    percent_of,
    samples_at,
    values_of,
    window,
)

# ---- is there anything to learn from? ------------------------------------------------------------------------

MANY_EQUAL, NEARLY_ALL_EQUAL = 0.5, 0.9
MOSTLY = 0.5


def equal_groups(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    equal = mean_of(steps, "equal_group_share")
    if equal is None or equal <= MANY_EQUAL:
        return None
    right, wrong = mean_of(steps, "all_right_share") or 0.0, mean_of(steps, "all_wrong_share") or 0.0
    why, advice = "", "look at the grader: it does not tell completions apart"
    if right / equal > MOSTLY:
        why = f" ({percent_of(right / equal)} of them all right): the data is too easy"
        advice = "harder data, data.max_pass_rate, or objective.dynamic_sampling"
    elif wrong / equal > MOSTLY:
        why = f" ({percent_of(wrong / equal)} of them all wrong): the data is too hard"
        advice = "easier data, solved examples, SFT first, or data.min_pass_rate"
    text = (
        f"{percent_of(equal)} of the groups of {name_steps(steps)} have equal rewards{why}; "
        f"only {percent_of(1 - equal)} can teach anything"
    )
    level: Severity = "alarm" if equal > NEARLY_ALL_EQUAL else "warn"
    return level, text, advice, samples_at(steps[-1])


def no_update(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    idle = [step for step in steps if step.why_no_update]
    if not idle or _learned_nothing(state):
        return None
    text = f"{len(idle)} of the last {len(steps)} steps made no update: {idle[-1].why_no_update}"
    return "warn", text, "more prompts in a step (train.prompts_per_step), or data it can learn from", "#/learning"


def nothing_learned(state: RunState, now: float) -> Complaint | None:
    if not _learned_nothing(state) or (state.num_steps_seen < MIN_STEPS and not state.finished):
        return None
    text = (
        f"none of the {state.num_steps_seen} steps changed the weights: nothing could be learned "
        f"({state.last_reason_without_update})"
    )
    return "alarm", text, "look at the completions and their rewards: data or grader is wrong", "#/samples"


def _learned_nothing(state: RunState) -> bool:
    return 0 < state.num_steps_seen == state.num_steps_without_update


LOW_VARIETY = 0.25


def variety(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    share = mean_of(steps, "distinct_text_share")
    # A group always has one text: in small ones that alone is above the limit.
    least = 1 / state.group_size if state.group_size else 0.0
    if share is None or share >= max(LOW_VARIETY, least + 1e-9):
        return None
    text = f"samples of a prompt are nearly the same: {percent_of(share)} of a group are different texts"
    return "warn", text, "a higher sampling.temperature, or objective.entropy_coefficient", samples_at(steps[-1])


LOW_ENTROPY = 0.2


def entropy(state: RunState, now: float) -> Complaint | None:
    first, last = first_of(state, "entropy"), newest(state, "entropy")
    if first is None or last is None or not is_past_start(state) or first <= 0 or last >= LOW_ENTROPY * first:
        return None
    text = f"entropy fell from {first:.2f} to {last:.2f}: little exploration is left"
    return "warn", text, "a lower train.lr, objective.entropy_coefficient, or objective.clip_high", "#/learning"


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
    where = samples_at(steps[-1], where="cut-off")
    return "warn", text, "a larger sampling.max_completion_tokens, or a stop string (sampling.stop)", where


def empty(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    share = mean_of(steps, "empty_share")
    if share is None or share <= MANY_EMPTY:
        return None
    text = f"{percent_of(share)} of the completions of {name_steps(steps)} have no text: the policy has collapsed"
    advice = (
        "go back to an earlier checkpoint with a lower train.lr; look at what earns an empty answer its reward"
    )
    return "alarm", text, advice, samples_at(steps[-1], order="length")


def length(state: RunState, now: float) -> Complaint | None:
    first, last = first_of(state, "completion_length"), mean_of(window(state), "completion_length")
    if first is None or last is None or not is_past_start(state) or first <= 0:
        return None
    if first / LENGTH_FACTOR < last < first * LENGTH_FACTOR:
        return None
    change = "grew" if last > first else "shrank"
    text = f"completions {change} from {first:.1f} to {last:.1f} tokens"
    return "info", text, "look whether the reward pays for length (reward.overlong_penalty)", "#/learning"


# ---- is the step what it should be? ---------------------------------------------------------------------------

LOW_ESS = 0.5
ESS_STEPS = 5


def effective_sample_size(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    sizes = values_of(steps, "effective_sample_size")
    if not sizes:
        return None
    largest = max(values_of(steps, "behaviour_weight_max"), default=math.nan)
    advice = "a lower buffer.max_staleness or train.lr, or a correction that caps or masks (objective.correction)"
    if min(sizes) < LOW_ESS:
        text = f"effective sample size fell to {min(sizes):.2f}: a few stale tokens carry the step"
        return "alarm", f"{text} (largest weight {largest:.1f})", advice, samples_at(steps[-1], order="weight")
    recent = sizes[-ESS_STEPS - 1 :]
    if len(recent) > ESS_STEPS and recent[-1] < recent[0] / 2:
        text = f"effective sample size fell by half in {ESS_STEPS} steps, from {recent[0]:.2f} to {recent[-1]:.2f}"
        return "warn", f"{text} (largest weight {largest:.1f})", advice, samples_at(steps[-1], order="weight")
    return None


GRADIENT_FACTOR = 5.0
GRADIENT_STEPS = 8


def gradient(state: RunState, now: float) -> Complaint | None:
    norms = values_of(state.last_steps, "grad_norm")
    skipped = sum(values_of(window(state), "skipped_updates"))
    advice = "a lower train.lr, a longer warm-up (train.warmup_steps) or train.max_grad_norm"
    if skipped:
        text = f"{skipped:.0f} updates of the last steps were skipped: their gradients were not finite"
        return "alarm", text, advice, "#/learning"
    if len(norms) <= GRADIENT_STEPS:
        return None
    usual = median(norms[-GRADIENT_STEPS - 1 : -1])
    if usual <= 0 or norms[-1] <= GRADIENT_FACTOR * usual:
        return None
    text = f"the gradient norm of the last update, {norms[-1]:.2g}, is {norms[-1] / usual:.0f} times its median"
    return "warn", text, advice, "#/learning"


LARGE_KL = 1e-3


def disagreement(state: RunState, now: float) -> Complaint | None:
    steps = window(state)
    worst = max(values_of(steps, "engine_trainer_kl"), default=0.0)
    if worst <= LARGE_KL:
        return None
    text = f"engine and trainer give different logprobs to the same tokens and weights (KL {worst:.1g})"
    return "alarm", text, "engine.dtype = train.dtype; if they are equal, please report this", "#/learning"


# ---- does held-out follow? ------------------------------------------------------------------------------------

LARGE_GAP = 0.15
NUM_FALLING = 3


def held_out_fell(state: RunState, now: float) -> Complaint | None:
    known = [row for row in state.evals if math.isfinite(row.accuracy)]
    if len(known) < 2 or known[-1].accuracy >= known[0].accuracy:
        return None
    first, last = known[0], known[-1]
    is_certain = last.accuracy_high < first.accuracy
    sure = "" if is_certain else ", within the error of the measurement"
    end = "ended" if state.finished else "is"
    text = (
        f"held-out accuracy {end} below where it began: {first.accuracy:.1%} at version {first.version}, "
        f"{last.accuracy:.1%} at version {last.version}{sure}"
    ).replace("%", " %")
    advice = "use an earlier checkpoint; a lower train.lr; look at what the reward pays for"
    return "alarm" if is_certain else "warn", text, advice, "#/learning"


def held_out_gap(state: RunState, now: float) -> Complaint | None:
    accuracy = mean_of(window(state), "accuracy")
    known = [row for row in state.evals if math.isfinite(row.accuracy)]
    if accuracy is None or len(known) < 2 or known[-1].version == 0:
        return None
    last = known[-1]
    if accuracy - last.accuracy <= LARGE_GAP or last.accuracy_high >= accuracy:
        return None
    text = (
        f"training accuracy {percent_of(accuracy)} is above held-out {percent_of(last.accuracy)}: "
        "memorising, or the grader is being gamed"
    )
    return "warn", text, "more or other data, fewer steps; read the completions that are right", "#/samples"


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
    text = f"the reward grows by `{rising[0]}` while held-out accuracy falls ({NUM_FALLING} evaluations)"
    return "warn", text, "a smaller weight for that part (reward.grader)", "#/learning"


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
        return "alarm", text, "the first failure is in log.txt, with its traceback", "#/samples?where=failed"
    slowest = max((track.slowest_seconds for track in state.graders.values()), default=0.0)
    if state.grade_limit_seconds and slowest > SLOW * state.grade_limit_seconds:
        text = f"a grade took {slowest:.1f} s, near its limit of {state.grade_limit_seconds:g} s"
        return "warn", text, "a quicker grader, or a larger reward.timeout_seconds", "#/time"
    steps = window(state)
    share = mean_of(steps, "common_reward_share")
    reward = newest(state, "common_reward")
    is_new = (newest(state, "accuracy") or 0.0) < MOSTLY
    if share is None or reward is None or share <= ONE_ANSWER or not is_new:
        return None
    text = f"the grader says {reward:g} to {percent_of(share)} of completions: is it alive?"
    return "warn", text, "try it on a right answer: freerun train RECIPE --dry-run", samples_at(steps[-1])
