"""Credit assignment within a session: one advantage per call.

By default every call has the advantage of its sample (`advantage.py`). With rewards per turn (`Reward.turns`) or
`turn_discount` below 1, calls are compared by their returns. With r_t the reward of call t and d the discount:

    return      G_t = r_t + d G_t+1               without rewards per turn the last call earned everything
    advantage   A_t = G_t - b_t                   b_t: the same call's return in the other samples

A sample that ended before call t counts 0 in b_t. So b_t depends on nothing that this sample did, and the gradient
is unbiased even if the policy decides when to stop. To compare each reward r_t with the others' and to sum these
differences is biased: a sample that continues subtracts one more baseline (docs/objectives.md).

An advantage that is divided by a deviation is divided by that of all calls of the batch. A deviation per call
number would depend on how many samples get that far.
"""

from collections.abc import Sequence

import numpy as np

from freerun.config.objective import ObjectiveConfig
from freerun.trainer.advantage import Floats64, PerGroup, scale
from freerun.trainer.axes import compute_advantages, sampled_lengths, undivided_advantage
from freerun.types import Group, WholeSample


def advantages_by_call(groups: Sequence[Group], objective: ObjectiveConfig) -> list[Floats64]:
    """For each sample, group after group, one advantage per call; zeros if a critic sets them."""
    samples = [sample for group in groups for sample in group.samples]
    if objective.has_critic or not has_turn_credit(samples, objective):
        advantages = compute_advantages(groups, objective)
        return [np.full(s.num_calls, a) for s, a in zip(samples, advantages, strict=True)]
    table_by_group = _compared(groups, objective)
    rows = [row for table in table_by_group for row in table]
    advantages_by_sample = [row[: s.num_calls] for row, s in zip(rows, samples, strict=True)]
    if not objective.divides_by_deviation:
        return advantages_by_sample
    return _scaled(advantages_by_sample, samples, objective)


def has_turn_credit(samples: Sequence[WholeSample], objective: ObjectiveConfig) -> bool:
    return objective.turn_discount < 1 or any(sample.reward.turns for sample in samples)


def returns_of_calls(sample: WholeSample, discount: float) -> Floats64:
    """The discounted return of each call."""
    num_calls, turns = sample.num_calls, sample.reward.turns
    earned = turns or (*[0.0] * (num_calls - 1), sample.reward.value)
    returns = np.zeros(max(num_calls, len(earned)))
    after = 0.0
    for call in reversed(range(len(earned))):
        returns[call] = after = earned[call] + discount * after
    return returns[:num_calls]


def _compared(groups: Sequence[Group], objective: ObjectiveConfig) -> list[Floats64]:
    """For each group, samples x calls: returns minus baselines; meaningless for calls that a sample never made."""
    discount = objective.turn_discount
    num_calls = max(sample.num_calls for group in groups for sample in group.samples)
    returns = [np.zeros((group.num_samples, num_calls)) for group in groups]
    for table, group in zip(returns, groups, strict=True):
        for row, sample in zip(table, group.samples, strict=True):
            row[: sample.num_calls] = returns_of_calls(sample, discount)
    lengths, compare = sampled_lengths(groups), undivided_advantage(objective)
    by_call: list[PerGroup] = [
        compare([table[:, call] for table in returns], lengths, objective) for call in range(num_calls)
    ]
    return [np.stack(columns, axis=1) for columns in zip(*by_call, strict=True)]


def _scaled(
    advantages: Sequence[Floats64], samples: Sequence[WholeSample], objective: ObjectiveConfig
) -> list[Floats64]:
    """Divided by the deviation over the batch, which counts each call once, or once per token."""
    flat = np.concatenate(advantages)
    counts = np.concatenate([_tokens_by_call(sample) for sample in samples])
    scaled = scale(flat, counts if objective.advantage_normalisation == "token" else None)
    return np.split(scaled, np.cumsum([len(of_sample) for of_sample in advantages])[:-1])


def _tokens_by_call(sample: WholeSample) -> np.ndarray:
    calls = np.concatenate([part.completion.calls for part in sample.parts])
    return np.bincount(calls, minlength=sample.num_calls)
