"""Subtractive Euclid: reasoning in which every step can be checked, for a model trained from scratch.

    prompt ^48,36>    answer 12,36>12,24>12,12=12$

Each step replaces the larger number by the difference, in its place, until both are equal; then follow the
common divisor and the end mark. The whole derivation is the answer: rewarding only the final number teaches a
model to guess. Lengths have a natural long tail (`^1,30>` takes 29 steps), as reasoning traces do.
"""

import random
from collections.abc import Iterator

from freerun.data.task_prompt import TaskPrompt
from freerun.errors import ConfigError

ALPHABET = "0123456789^,>=$"
MAX_NUMBER = 1000
"""There are nearly as many prompts as its square, and all of them are made before a run begins."""
Pair = tuple[int, int]

_SLIPS = (-10, -2, -1, 1, 2, 10)
"""Offsets of a wrong last step: errors of arithmetic by hand."""


def prompts(max_number: int = 30) -> Iterator[TaskPrompt]:
    """Every pair of different numbers in 1..max_number."""
    if type(max_number) is not int or not 5 <= max_number <= MAX_NUMBER:
        raise ConfigError(
            f"config: data.settings: max_number={max_number!r} must be a whole number from 5 to {MAX_NUMBER}"
        )
    for a in range(1, max_number + 1):
        for b in range(1, max_number + 1):
            if a != b:
                yield TaskPrompt(key=f"{a},{b}", text=f"^{a},{b}>", answer=_written(_derivation((a, b))))


def demonstration(prompt: TaskPrompt, rng: random.Random, error_rate: float) -> str:
    """A derivation whose steps go wrong with probability `error_rate`; most wrong steps jump to the conclusion.

    It always ends: no number exceeds the larger one of its step, and steps beyond the length of the right
    derivation never err.
    """
    a, b = prompt.key.split(",")
    pair = (int(a), int(b))
    num_steps_that_may_err = len(_derivation(pair))
    pairs: list[Pair] = []
    while pair[0] != pair[1]:
        may_err = len(pairs) < num_steps_that_may_err
        goes_wrong = may_err and rng.random() < error_rate
        pair = _wrong_step(pair, rng) if goes_wrong else _step(pair)
        pairs.append(pair)
    return _written(pairs)


def _step(pair: Pair) -> Pair:
    a, b = pair
    return (a - b, b) if a > b else (a, b - a)


def _wrong_step(pair: Pair, rng: random.Random) -> Pair:
    """A wrong step: the new number is claimed to equal the other, which ends it; in the last step, a slip.

    Hardly any token follows such an error. Tokens that follow an error cannot change the reward any more, so
    training on them would be noise.
    """
    a, b = _step(pair)
    if a != b:
        return (b, b) if pair[0] > pair[1] else (a, a)
    numbers = [a, b]
    place = rng.randrange(2)
    numbers[place] = rng.choice([n for s in _SLIPS if 1 <= (n := numbers[place] + s) <= max(pair)])
    return numbers[0], numbers[1]


def _derivation(pair: Pair) -> list[Pair]:
    pairs = []
    while pair[0] != pair[1]:
        pair = _step(pair)
        pairs.append(pair)
    return pairs


def _written(pairs: list[Pair]) -> str:
    steps = ">".join(f"{a},{b}" for a, b in pairs)
    return f"{steps}={pairs[-1][0]}$"
