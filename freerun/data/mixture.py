"""A mixture: interleaves the streams of several recipes into one, in exact proportion at any point.

    weights 7, 3   ordinal  0 1 2 3 4 5 6 7 8 9 | 10 ...
                   part     A A B A A B A A A B | the same pattern again
                   its own  0 1 0 2 3 1 4 5 6 2 | 7 ...

The pattern has as many places as the sum of the whole-number weights, and each part gets exactly its weight of
them. The j-th place of a part of weight w belongs to its j-th stretch of total/w ordinals; a place goes to the
part whose stretch ends first among those whose stretch has begun. Of any first n ordinals a part has n w /
total, rounded up or down. So a prompt is found from its ordinal by arithmetic, a checkpoint stores a single
cursor, and every part has its own epochs.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

import msgspec

from freerun.config.data import DataConfig
from freerun.data.source import PromptSource
from freerun.data.task_prompt import TaskPrompt, TaskPrompts, fingerprint_of
from freerun.data.tasks import load_prompts
from freerun.data.tokenizer import Tokenizer
from freerun.data.wording import RowUse
from freerun.errors import ConfigError
from freerun.types import Prompt

MAX_PATTERN = 100_000


class Mixture:
    """Prompts of several sources under common ordinals, with a cursor."""

    def __init__(self, sources: dict[str, PromptSource], weights: Sequence[float] = ()) -> None:
        self.cursor = 0
        """Ordinal of the next prompt from `take`; set it to resume."""
        self._names = list(sources)
        self._sources = list(sources.values())
        self._weights = whole_weights(weights or [1.0] * len(sources))
        self._pattern = interleaved(self._weights)
        self._num_before = _running_counts(self._pattern)

    @property
    def epoch_size(self) -> int:
        """Total number of prompts of all sources; each source has its own epochs."""
        return sum(source.epoch_size for source in self._sources)

    @property
    def num_too_long(self) -> int:
        return sum(source.num_too_long for source in self._sources)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that determines which prompt has which ordinal."""
        parts = zip(self._names, self._weights, self._sources, strict=True)
        return fingerprint_of(f"{name}:{weight}:{source.fingerprint}".encode() for name, weight, source in parts)

    def at(self, ordinal: int) -> Prompt:
        rounds, place = divmod(ordinal, len(self._pattern))
        part = self._pattern[place]
        own = rounds * self._weights[part] + self._num_before[place]
        return self._named(part, self._sources[part].at(own), ordinal)

    def take(self) -> Prompt:
        prompt = self.at(self.cursor)
        self.cursor += 1
        return prompt

    def held_out(self, limit: int) -> list[Prompt]:
        """The first `limit` held-out prompts, interleaved as long as all parts have some left."""
        mixed = self._interleave([source.held_out(limit) for source in self._sources])[:limit]
        return [self._named(part, prompt, -1 - i) for i, (part, prompt) in enumerate(mixed)]

    def training(self) -> list[Prompt]:
        """Every training prompt of every part once; ordinals match the stream until the smallest part ends."""
        mixed = self._interleave([source.training() for source in self._sources])
        return [self._named(part, prompt, i) for i, (part, prompt) in enumerate(mixed)]

    def prompts(self) -> TaskPrompts:
        """The task prompts of all parts, with the part's name as a prefix of their keys."""
        parts = [(name, source.prompts()) for name, source in zip(self._names, self._sources, strict=True)]
        return TaskPrompts(
            training=tuple(_renamed(prompt, name) for name, part in parts for prompt in part.training),
            held_out=tuple(_renamed(prompt, name) for name, part in parts for prompt in part.held_out),
        )

    def _interleave(self, prompts: list[list[Prompt]]) -> list[tuple[int, Prompt]]:
        """All prompts, each with its part, interleaved as long as all parts have some left."""
        waiting = [iter(of_part) for of_part in prompts]
        mixed: list[tuple[int, Prompt]] = []
        num_prompts = sum(len(of_part) for of_part in prompts)
        for part in itertools.cycle(self._pattern):
            if len(mixed) == num_prompts:
                break
            if (prompt := next(waiting[part], None)) is not None:
                mixed.append((part, prompt))
        return mixed

    def _named(self, part: int, prompt: Prompt, ordinal: int) -> Prompt:
        name = self._names[part]
        key = prompt.key.removeprefix(f"{name}:")  # a recipe is often named after its task
        return msgspec.structs.replace(prompt, ordinal=ordinal, key=f"{name}/{key}")


PromptStream = PromptSource | Mixture


def open_stream(config: DataConfig, tokenizer: Tokenizer, *, seed: int, row_use: RowUse = "none") -> PromptStream:
    """The prompt stream of a recipe; rows of the data are included if `row_use` needs them."""
    sources = {
        name: PromptSource(load_prompts(part), tokenizer, config=part, seed=seed, row_use=row_use)
        for name, part in config.parts.items()
    }
    return Mixture(sources, config.weights) if config.mixture else next(iter(sources.values()))


def _renamed(prompt: TaskPrompt, part: str) -> TaskPrompt:
    return dataclasses.replace(prompt, key=f"{part}/{prompt.key}")


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The smallest whole numbers in the same proportion; 0.7 and 0.3 become 7 and 3."""
    # As written: the binary fraction nearest to 0.7 has a denominator of 2^52.
    exact = [Fraction(repr(float(weight))) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    divisor = math.gcd(*whole)
    whole = [weight // divisor for weight in whole]
    if sum(whole) > MAX_PATTERN:
        raise ConfigError(
            f"config: data.weights = {list(weights)} repeat only after {sum(whole)} prompts; use simpler numbers"
        )
    return whole


def interleaved(weights: Sequence[int]) -> list[int]:
    """One period of the pattern: the part at each place."""
    total = sum(weights)
    counts = [0] * len(weights)
    pattern = []
    for place in range(total):
        begun = [i for i, w in enumerate(weights) if counts[i] * total < (place + 1) * w]
        part = min(begun, key=lambda i: (-(-(counts[i] + 1) * total // weights[i]), i))
        counts[part] += 1
        pattern.append(part)
    return pattern


def _running_counts(pattern: Sequence[int]) -> list[int]:
    """For each place, how many earlier places belong to the same part."""
    counts: dict[int, int] = {}
    before = []
    for part in pattern:
        before.append(counts.get(part, 0))
        counts[part] = before[-1] + 1
    return before
