"""Combines the rewards of the parts to the reward of the completion.

    value = sum over the parts of weight * value of the part, minus the overlong penalty

The first part decides `is_correct`. Parts are recorded before weighting: a part of weight 0 is tracked without
being rewarded. A single part equals the value and is not recorded.

The overlong penalty is DAPO's soft punishment (arXiv 2503.14476, section 3.4) in units of our rewards: 0 up to
`limit - buffer` tokens, then linear, in full at the limit. It smooths the jump that a hard limit makes between two
completions that differ by one token.
"""

from collections.abc import Mapping

from freerun.config.reward import RewardConfig
from freerun.config.values import MAX_REWARD
from freerun.types import Grade, GradeFailed, Reward

OVERLONG = "overlong"


def weigh(rewards: Mapping[str, Reward], config: RewardConfig, *, overlong: float) -> Grade:
    """The reward of a completion from the rewards of its parts, in the order of `config.parts`."""
    value = overlong + sum(part.weight * rewards[part.grader].value for part in config.parts)
    if not abs(value) <= MAX_REWARD:
        return GradeFailed(
            f'the parts of "{config.grader}" add up to {value}; '
            f"a reward lies from -{MAX_REWARD:,.0f} to {MAX_REWARD:,.0f}"
        )
    recorded = [entry for part in config.parts for entry in _entries(part.grader, rewards[part.grader])]
    if config.overlong_buffer_tokens:
        recorded.append((OVERLONG, overlong))
    parts = dict(recorded)
    if len(parts) < len(recorded):
        names = [name for name, _ in recorded]
        twice = next(name for name in names if names.count(name) > 1)
        return GradeFailed(f'two parts of "{config.grader}" are named "{twice}"; rename the one you return')
    is_correct = rewards[config.parts[0].grader].is_correct
    return Reward(value, is_correct, parts if len(parts) > 1 else {})


def as_wrong(reward: Reward, config: RewardConfig) -> Reward:
    """The reward with its deciding part set to `reward.incorrect`; other parts stay, so their means include it."""
    decisive = next(iter(reward.parts), "")
    parts = reward.parts | {decisive: config.incorrect} if decisive else {}
    return Reward(sum(parts.values()) if parts else config.incorrect, False, parts)


def overlong_value(num_tokens: int, max_tokens: int, config: RewardConfig) -> float:
    """The penalty (negative or 0) for the length of a completion."""
    buffer = config.overlong_buffer_tokens
    num_over = min(num_tokens - (max_tokens - buffer), buffer)
    return -config.overlong_penalty * num_over / buffer if num_over > 0 else 0.0


def _entries(grader: str, reward: Reward) -> list[tuple[str, float]]:
    return list(reward.parts.items()) or [(grader, reward.value)]
