"""Lengths of completions: two parameters, a cap, and how alike the samples of one prompt are.

A length is lognormal, `exp(mu + sigma z)`, cut off at a cap. `likeness` is the share of the variance of `z` that
samples of one prompt have in common: 0 if prompts do not differ, 1 if all samples of a prompt are equally long. It
matters because a step that waits for whole groups waits longer if long samples occur together. Lengths may drift
while the policy learns. `RecordedLengths` uses the lengths of a run.

Every length depends only on the seed, the ordinal and the sample, not on the order of requests.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist, fmean, variance
from typing import Protocol

_NORMAL = NormalDist()
_NUM_BISECTIONS = 80
_MAX_SIGMA = 5.0
_NUM_REMEMBERED = 4096
_STREAM = 1_000_003
"""Factor that spreads seeds and ordinals over the seeds of `random.Random`."""


class Lengths(Protocol):
    """The lengths of the samples of one prompt."""

    def of_group(self, ordinal: int, num_samples: int) -> list[int]:
        """Lengths of the first `num_samples` samples; they do not depend on `num_samples`."""
        ...


@dataclass(frozen=True)
class Drift:
    """Lengths grow by `factor` from the first ordinal to `num_prompts`, then stay or fall at the same pace."""

    factor: float
    num_prompts: int
    comes_back: bool = False

    def at(self, ordinal: int) -> float:
        way = max(0, ordinal) / self.num_prompts
        back = max(0.0, 2.0 - way) if self.comes_back else 1.0
        return float(self.factor ** min(way, 1.0, back))


@dataclass(frozen=True)
class LognormalLengths:
    """Implements `Lengths`."""

    mu: float
    sigma: float
    cap: int
    likeness: float = 0.5
    drift: Drift | None = None
    seed: int = 0

    def of_group(self, ordinal: int, num_samples: int) -> list[int]:
        gauss = random.Random(self.seed * _STREAM + ordinal).gauss
        of_prompt = math.sqrt(self.likeness) * self.sigma * gauss(0, 1)
        spread = math.sqrt(1 - self.likeness) * self.sigma
        middle = self.mu + of_prompt + (math.log(self.drift.at(ordinal)) if self.drift else 0.0)
        # The exponent is bounded: a cap of a billion tokens exceeds the capacity of any engine.
        drawn = [math.exp(min(21.0, middle + spread * gauss(0, 1))) for _ in range(num_samples)]
        return [max(1, min(self.cap, int(length))) for length in drawn]


@dataclass(frozen=True)
class RecordedLengths:
    """Recorded lengths by ordinal; for an unknown ordinal a recorded group is used. Implements `Lengths`."""

    groups: Mapping[int, Sequence[int]]
    seed: int = 0

    def of_group(self, ordinal: int, num_samples: int) -> list[int]:
        dice = random.Random(self.seed * _STREAM + ordinal)
        recorded = self.groups.get(ordinal) or dice.choice(self._recorded)
        return [
            recorded[index] if index < len(recorded) else dice.choice(recorded) for index in range(num_samples)
        ]

    @cached_property
    def _recorded(self) -> list[Sequence[int]]:
        return [self.groups[ordinal] for ordinal in sorted(self.groups)]


class DrawnOnce:
    """Caches the lengths of whole groups while their samples are requested one by one. Implements `Lengths`."""

    def __init__(self, lengths: Lengths, group_size: int) -> None:
        self._group_size = group_size
        self._lengths = lengths
        self._of_whole_group = lru_cache(_NUM_REMEMBERED)(lambda ordinal: lengths.of_group(ordinal, group_size))

    def of_group(self, ordinal: int, num_samples: int) -> list[int]:
        if num_samples > self._group_size:
            return self._lengths.of_group(ordinal, num_samples)
        return self._of_whole_group(ordinal)[:num_samples]


def capped_mean(mu: float, sigma: float, cap: float) -> float:
    """Mean of lognormal lengths that are cut off at `cap`."""
    return _partial_moment(mu, sigma, cap, 1)


def capped_square(mu: float, sigma: float, cap: float) -> float:
    """Mean of the squares of these lengths."""
    return _partial_moment(mu, sigma, cap, 2)


def _partial_moment(mu: float, sigma: float, cap: float, power: int) -> float:
    distance = (math.log(cap) - mu) / sigma
    below = math.exp(power * mu + (power * sigma) ** 2 / 2) * _NORMAL.cdf(distance - power * sigma)
    return float(below + cap**power * (1 - _NORMAL.cdf(distance)))


def fit_mean(mean: float, sigma: float, cap: int) -> float:
    """The `mu` for which lengths cut off at `cap` have this mean, which must be below the cap."""
    if not 1 <= mean < cap:
        raise ValueError(f"a mean length of {mean:g} is not between 1 and the cap of {cap} tokens")
    return _bisect(lambda mu: capped_mean(mu, sigma, cap), mean, 0.0, math.log(cap) + 40 * sigma)


def fit_cut(mean: float, cut_share: float, cap: int) -> tuple[float, float]:
    """The `mu` and `sigma` for this mean and this share of lengths cut off at `cap`."""
    place = _NORMAL.inv_cdf(1 - cut_share)

    def mean_with(sigma: float) -> float:
        return -capped_mean(math.log(cap) - place * sigma, sigma, cap)

    sigma = _bisect(mean_with, -mean, 0.02, _MAX_SIGMA)
    return math.log(cap) - place * sigma, sigma


def _bisect(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    for _ in range(_NUM_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2


def measure_likeness(groups: Sequence[Sequence[int]]) -> float:
    """The share of the variance of log-lengths common to samples of one prompt: an intraclass correlation."""
    logs = [[math.log(max(1, length)) for length in group] for group in groups if len(group) > 1]
    if len(logs) < 2:
        return 0.5
    within = fmean(variance(group) for group in logs)
    size = fmean(len(group) for group in logs)
    between = max(0.0, variance([fmean(group) for group in logs]) - within / size)
    return between / (between + within) if between + within > 0 else 0.0
