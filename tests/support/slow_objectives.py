"""The published objectives once more: slow, in double precision, token by token, each written out by itself.

Nothing here uses the package's advantages, ratios, clips, corrections, aggregations, critic or losses. Only who
trains with whom is taken from `deal_minibatches`, and the decoder from the model. Each objective is a function of
a step (all of its samples, for the divisors) and a part of it (one minibatch); it returns what is maximised. A
session of several calls is one sample, given as one sequence per call.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import torch
from msgspec import structs
from slow_advantages import deviation, mean, naive_gae, slow_advantages, slow_advantages_per_token
from torch import Tensor, nn
from training_batches import MAX_COMPLETION_TOKENS, TEMPERATURE

from freerun.config.train import TrainConfig
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.trainer.packing import deal_minibatches
from freerun.types import Group, Trajectory


@dataclass
class Seen:
    """One sample: what is fixed at the start of the step, and under `current` what the weights say now."""

    calls: list[Trajectory]
    advantages: list[float]
    proximal: list[float]
    behaviour: list[float]
    is_kept: list[bool]
    returns: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    current: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.behaviour)

    def ranges(self) -> list[range]:
        """The tokens of each call."""
        ends = list(accumulate(len(t.completion.token_ids) for t in self.calls))
        return [range(end - len(t.completion.token_ids), end) for t, end in zip(self.calls, ends, strict=True)]


Step = list[Seen]
Objective = Callable[[Step, Step], Tensor]
ZERO = torch.zeros((), dtype=torch.float64)


def number(x: Tensor) -> float:
    return float(x.detach())


def clip(x: Tensor, low: float, high: float) -> Tensor:
    if number(x) < low:
        return torch.tensor(low, dtype=torch.float64)
    if number(x) > high:
        return torch.tensor(high, dtype=torch.float64)
    return x


def lesser(x: Tensor, y: Tensor) -> Tensor:
    return x if number(x) <= number(y) else y


def num_tokens(step: Step) -> int:
    return sum(len(s) for s in step)


# ---- the presets --------------------------------------------------------------------------------


def token_mean_of_clipped(step: Step, part: Step, low: float, high: float) -> Tensor:
    """AReaL's Equation 5; with other advantages REINFORCE++, DAPO and PPO."""
    total = ZERO
    for s in part:
        for t in range(len(s)):
            u = torch.exp(s.current[t] - s.proximal[t])
            weight = math.exp(s.proximal[t] - s.behaviour[t])
            a = s.advantages[t]
            total = total + weight * lesser(u * a, clip(u, 1 - low, 1 + high) * a)
    return total / num_tokens(step)


def areal(step: Step, part: Step) -> Tensor:
    return token_mean_of_clipped(step, part, 0.2, 0.2)


def dapo(step: Step, part: Step) -> Tensor:
    return token_mean_of_clipped(step, part, 0.2, 0.28)


def ppo(step: Step, part: Step) -> Tensor:
    error = ZERO
    for s in part:
        for t in range(len(s)):
            error = error + (s.values[t] - s.returns[t]) ** 2
    return token_mean_of_clipped(step, part, 0.2, 0.2) - 0.1 * 0.5 * error / num_tokens(step)


def grpo(step: Step, part: Step) -> Tensor:
    total = ZERO
    for s in part:
        inner = ZERO
        for t in range(len(s)):
            r = torch.exp(s.current[t]) / math.exp(s.proximal[t])
            stale = math.exp(s.proximal[t]) / math.exp(s.behaviour[t])
            inner = inner + stale * lesser(r * s.advantages[t], clip(r, 0.8, 1.2) * s.advantages[t])
        total = total + inner / len(s)
    return total / len(step)


def dr_grpo(step: Step, part: Step) -> Tensor:
    total = ZERO
    for s in part:
        for t in range(len(s)):
            r = torch.exp(s.current[t]) / math.exp(s.proximal[t])
            stale = math.exp(s.proximal[t]) / math.exp(s.behaviour[t])
            total = total + stale * lesser(r * s.advantages[t], clip(r, 0.8, 1.2) * s.advantages[t])
    return total / (len(step) * MAX_COMPLETION_TOKENS)


def rloo(step: Step, part: Step) -> Tensor:
    total = ZERO
    for s in part:
        for t in range(len(s)):
            # The proximal policy cancels: plain importance sampling of REINFORCE's gradient.
            total = total + torch.exp(s.current[t] - s.behaviour[t]) * s.advantages[t]
    return total / (len(step) * MAX_COMPLETION_TOKENS)


def gspo(step: Step, part: Step) -> Tensor:
    """One ratio per call, which counts by its share of the sample's tokens; a completion is one call."""
    total = ZERO
    for s in part:
        for call in s.ranges():
            current, proximal = sum((s.current[t] for t in call), ZERO), sum(s.proximal[t] for t in call)
            likelihood = torch.exp(current - proximal) ** (1 / len(call))
            stale = math.exp(proximal - sum(s.behaviour[t] for t in call)) ** (1 / len(call))
            a = s.advantages[call[0]]
            gain = stale * lesser(likelihood * a, clip(likelihood, 1 - 3e-4, 1 + 4e-4) * a)
            total = total + gain * len(call) / len(s)
    return total / len(step)


def cispo(step: Step, part: Step) -> Tensor:
    total = ZERO
    for s in part:
        for t in range(len(s)):
            weight = min(math.exp(number(s.current[t]) - s.behaviour[t]), 5.0)
            total = total + weight * s.advantages[t] * s.current[t]
    return total / num_tokens(step)


def sapo(step: Step, part: Step) -> Tensor:
    total = ZERO
    for s in part:
        inner = ZERO
        for t in range(len(s)):
            tau = 1.0 if s.advantages[t] > 0 else 1.05
            r = torch.exp(s.current[t] - s.proximal[t])
            gate = 1 / (1 + torch.exp(-tau * (r - 1))) * 4 / tau
            inner = inner + math.exp(s.proximal[t] - s.behaviour[t]) * gate * s.advantages[t]
        total = total + inner / len(s)
    return total / len(step)


def m2po(step: Step, part: Step) -> Tensor:
    total = ZERO
    for s in part:
        for t in range(len(s)):
            if s.is_kept[t]:
                total = total + torch.exp(s.current[t] - s.behaviour[t]) * s.advantages[t]
    return total / num_tokens(step)


def icepop(step: Step, part: Step) -> Tensor:
    total = ZERO
    for s in part:
        inner = ZERO
        for t in range(len(s)):
            k = math.exp(s.proximal[t] - s.behaviour[t])
            if 0.5 <= k <= 5.0:
                r = torch.exp(s.current[t] - s.proximal[t])
                inner = inner + k * lesser(r * s.advantages[t], clip(r, 0.8, 1.2) * s.advantages[t])
        total = total + inner / len(s)
    return total / len(step)


PUBLISHED: dict[str, Objective] = {
    "areal": areal,
    "ppo": ppo,
    "grpo": grpo,
    "dr-grpo": dr_grpo,
    "rloo": rloo,
    "reinforce++": areal,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "sapo": sapo,
    "m2po": m2po,
    "icepop": icepop,
}
ADVANTAGE = {
    "areal": "global",
    "ppo": "gae",
    "grpo": "grpo",
    "dr-grpo": "dr_grpo",
    "rloo": "rloo",
    "reinforce++": "reinforce++",
    "dapo": "grpo",
    "gspo": "grpo",
    "cispo": "grpo",
    "sapo": "grpo",
    "m2po": "grpo",
    "icepop": "grpo",
}


# ---- options no preset uses ---------------------------------------------------------------------


def truncated_dual(step: Step, part: Step) -> Tensor:
    """Dual clip at 1.5, behaviour weights capped at 2."""
    total = ZERO
    for s in part:
        for t in range(len(s)):
            r, a = torch.exp(s.current[t] - s.proximal[t]), s.advantages[t]
            gain = lesser(r * a, clip(r, 0.8, 1.2) * a)
            if a < 0 and number(gain) < 1.5 * a:
                gain = torch.tensor(1.5 * a, dtype=torch.float64)
            total = total + min(math.exp(s.proximal[t] - s.behaviour[t]), 2.0) * gain
    return total / num_tokens(step)


def grpo_with_kl_and_entropy(step: Step, part: Step) -> Tensor:
    """DeepSeekMath's GRPO: - 0.3 KL inside the mean over tokens; and an entropy bonus of 0.2 beside it."""
    total = ZERO
    for s in part:
        inner = ZERO
        for t in range(len(s)):
            x = math.exp(s.reference[t]) / torch.exp(s.current[t])
            inner = inner - 0.3 * (x - torch.log(x) - 1) + 0.2 * s.entropies[t]
        total = total + inner / len(s)
    return grpo(step, part) + total / len(step)


def sequence_masked(step: Step, part: Step) -> Tensor:
    """GSPO's ratio with a clip of 0.05; completions whose geometric-mean weight is outside [0.8, 1.2] left out."""
    total = ZERO
    for s in part:
        stale = math.exp(sum(s.proximal) - sum(s.behaviour)) ** (1 / len(s))
        if 0.8 <= stale <= 1.2:
            r, a = torch.exp(sum(s.current, ZERO) - sum(s.proximal)) ** (1 / len(s)), s.advantages[0]
            total = total + stale * lesser(r * a, clip(r, 0.95, 1.05) * a)
    return total / len(step)


# ---- a step -------------------------------------------------------------------------------------


def slow_m2_mask(step: Step, threshold: float) -> None:
    """Of the tokens that are limited leave out the one of the largest moment, again and again, until the mean of
    the rest is small; the others stay.
    """
    moments = []
    for s in step:
        for t in range(len(s)):
            r, a = math.exp(s.proximal[t]) / math.exp(s.behaviour[t]), s.advantages[t]
            if (a > 0 and r > 1) or (a < 0 and r < 1):
                moments.append((math.log(r) ** 2, s, t))
    while moments and mean([m for m, _, _ in moments]) >= threshold:
        largest = max(moments, key=lambda row: row[0])
        largest[1].is_kept[largest[2]] = False
        moments.remove(largest)


class SlowTrainer:
    """A decoder in double precision, one unpacked sequence at a time."""

    def __init__(
        self, model: Decoder, train: TrainConfig, critic: nn.Linear | None = None, reference: Decoder | None = None
    ) -> None:
        self.model, self.train = model.double(), train
        self.critic = critic.double() if critic is not None else None
        self.reference = reference.double() if reference is not None else None
        head = list(critic.parameters()) if critic is not None else []
        parameters: list[dict[str, Any]] = [
            {"params": [p for p in model.parameters() if p.ndim >= 2]},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
            {"params": head, "weight_decay": 0.0, "lr": 10 * train.lr},
        ]
        self.adamw = torch.optim.AdamW(
            parameters,
            lr=train.lr,
            betas=(0.9, 0.95),
            eps=train.adam_eps,
            weight_decay=train.weight_decay,
            foreach=False,
        )

    def look(self, model: Decoder, calls: list[Trajectory]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Logprobs, entropies and values of the tokens of all calls, one after the other."""
        logprobs, entropies, values = zip(*(self._look_at_one(model, t) for t in calls), strict=True)
        return [*chain(*logprobs)], [*chain(*entropies)], [*chain(*values)]

    def _look_at_one(self, model: Decoder, t: Trajectory) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        ids = [*t.prompt.token_ids.tolist(), *t.completion.token_ids.tolist()]
        hidden: list[Tensor] = []
        hook = model.final_norm.register_forward_hook(lambda _, __, output: hidden.append(output))
        table = torch.log_softmax(full_forward_logits(model, ids) / TEMPERATURE, dim=-1)
        hook.remove()
        at = range(len(t.prompt.token_ids), len(ids))
        entropies = [-(table[i - 1].exp() * table[i - 1]).sum() for i in at]
        values = [self.critic(hidden[0][i - 1].detach())[0] for i in at] if self.critic is not None else []
        return [table[i - 1, ids[i]] for i in at], entropies, values

    @torch.no_grad()
    def start(self, groups: list[Group], estimator: str, *, gamma: float = 1.0, lam: float = 1.0) -> Step:
        step: Step = []
        samples = [calls for group in groups for calls in calls_by_sample(group)]
        name, _, per_token = estimator.partition(" per ")
        slow = slow_advantages_per_token if per_token else slow_advantages
        flat = [0.0] * len(samples) if estimator == "gae" else slow([first_calls(group) for group in groups], name)
        for calls, advantage in zip(samples, flat, strict=True):
            logprobs, _, values = self.look(self.model, calls)
            seen = Seen(
                calls=calls,
                advantages=[advantage] * len(logprobs),
                proximal=[float(p) for p in logprobs],
                behaviour=[float(b) for t in calls for b in t.completion.logprobs],
                is_kept=[True] * len(logprobs),
            )
            if self.reference is not None:
                seen.reference = [float(p) for p in self.look(self.reference, calls)[0]]
            if estimator == "gae":
                start_values = [float(v) for v in values]
                seen.advantages = naive_gae(start_values, calls[0].reward.value, gamma, lam)
                seen.returns = [a + v for a, v in zip(seen.advantages, start_values, strict=True)]
            step.append(seen)
        if estimator == "gae":
            everything = [a for s in step for a in s.advantages]
            centre, spread = mean(everything), deviation(everything)
            for s in step:
                s.advantages = [(a - centre) / (spread + 1e-6) for a in s.advantages]
        return step

    def run(self, step: Step, objective: Objective, *, skips_zero: bool) -> tuple[float, list[dict[str, Tensor]]]:
        """One update per minibatch; the step's loss, and the gradients of each update."""
        live = [s for s in step if not skips_zero or any(a != 0 for a in s.advantages)]
        lengths = [sum(len(t.prompt.token_ids) for t in s.calls) + len(s) - len(s.calls) for s in live]
        loss, gradients = 0.0, []
        dealt = deal_minibatches(lengths, self.train.num_minibatches)
        for part in dealt:
            for i in part:
                live[i].current, live[i].entropies, live[i].values = self.look(self.model, live[i].calls)
            gain = objective(step, [live[i] for i in part])
            self.adamw.zero_grad()
            (-gain * len(dealt)).backward()
            named = [*self.model.named_parameters()]
            if self.critic is not None:
                named += [(f"critic.{name}", p) for name, p in self.critic.named_parameters()]
            gradients.append({name: gradient_of(p) for name, p in named})
            self.adamw.step()
            loss -= float(gain.detach())
        return loss, gradients


def calls_by_sample(group: Group) -> list[list[Trajectory]]:
    return [
        [t for t in group.trajectories if t.sample == s] for s in sorted({t.sample for t in group.trajectories})
    ]


def first_calls(group: Group) -> Group:
    """The group with one trajectory per sample: all have the sample's reward."""
    return structs.replace(group, trajectories=tuple(calls[0] for calls in calls_by_sample(group)))


def gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()
