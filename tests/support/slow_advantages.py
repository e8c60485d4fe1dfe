"""The published advantages once more, with plain loops and sums; for `slow_objectives.py`."""

import math
from collections.abc import Sequence

from training_batches import trajectories_of

from freerun.types import Group, Trajectory


def slow_advantages(groups: list[Group], estimator: str) -> list[float]:
    everything = [t.reward.value for t in trajectories_of(groups)]
    advantages: list[float] = []
    for group in groups:
        rewards = [t.reward.value for t in group.trajectories]
        for i, reward in enumerate(rewards):
            others = rewards[:i] + rewards[i + 1 :]
            match estimator:
                case "global":
                    advantages.append((reward - mean(everything)) / (deviation(everything) + 1e-6))
                case "grpo":
                    advantages.append((reward - mean(rewards)) / (deviation(rewards) + 1e-6))
                case "dr_grpo" | "reinforce++":
                    advantages.append(reward - mean(rewards))
                case "rloo":
                    advantages.append(reward - mean(others))
    if estimator == "reinforce++":
        spread = deviation(advantages)
        advantages = [a / (spread + 1e-6) for a in advantages]
    return [0.0 if abs(a) < 1e-9 else a for a in advantages]


def slow_advantages_per_token(groups: list[Group], estimator: str) -> list[float]:
    """AReaL's code: every token has the reward of its completion, and the tokens are normalised."""

    def on_tokens(trajectories: Sequence[Trajectory], values: Sequence[float]) -> list[float]:
        return [v for t, v in zip(trajectories, values, strict=True) for _ in t.completion.token_ids]

    def normalised(trajectories: Sequence[Trajectory]) -> list[float]:
        rewards = [t.reward.value for t in trajectories]
        tokens = on_tokens(trajectories, rewards)
        return [(r - mean(tokens)) / (deviation(tokens) + 1e-6) for r in rewards]

    match estimator:
        case "global":
            advantages = normalised(trajectories_of(groups))
        case "grpo":
            advantages = [a for group in groups for a in normalised(group.trajectories)]
        case _:
            advantages = slow_advantages(groups, "dr_grpo")
            spread = deviation(on_tokens(trajectories_of(groups), advantages))
            advantages = [a / (spread + 1e-6) for a in advantages]
    return [0.0 if abs(a) < 1e-9 else a for a in advantages]


def mean(xs: list[float]) -> float:
    return math.fsum(xs) / len(xs)


def deviation(xs: list[float]) -> float:
    return math.sqrt(mean([(x - mean(xs)) ** 2 for x in xs]))


def naive_gae(values: list[float], reward: float, gamma: float, lam: float) -> list[float]:
    """The double sum of the definition: A_t = sum over l of (gamma lambda)^l delta_t+l."""
    deltas = []
    for t in range(len(values)):
        is_last = t == len(values) - 1
        after = 0.0 if is_last else values[t + 1]
        deltas.append((reward if is_last else 0.0) + gamma * after - values[t])
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(values))) for t in range(len(values))]
