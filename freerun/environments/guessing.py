"""Guess a number in a range: an environment of many turns whose optimum, bisection, is known exactly.

    10-90>64↵   10-63>44↵   10-43>25↵   26-43>34↵   35-43>38↵   35-37>36↵   37-37>37↵

The environment prints the remaining range and `>`; the policy writes a number and a line break. Fewer guesses
earn more. The teacher of SFT guesses at random, so the policy must find bisection by itself. A tiny model made
from scratch plays thousands of games a minute.
"""

import random
import re
from collections.abc import Iterator

from freerun.data.task_prompt import TaskPrompt
from freerun.rollout.episode import Policy, Task
from freerun.types import Reward

ALPHABET = "0123456789->\n"
MAX_GUESSES = 10
NUM_NUMBERS = 100
MIN_RANGE = 10
"""Numbers in the smallest range: in a smaller one luck suffices."""

_NUMBER = re.compile("[0-9]{1,2}")


def prompts() -> Iterator[TaskPrompt]:
    """Every range of `MIN_RANGE` or more numbers below 100; the answer is bisection's maximum of guesses."""
    for low in range(NUM_NUMBERS):
        for high in range(low + MIN_RANGE - 1, NUM_NUMBERS):
            num_guesses = (high - low + 1).bit_length()
            yield TaskPrompt(key=f"{low}-{high}", text=written(low, high), answer=str(num_guesses))


def demonstration(prompt: TaskPrompt, rng: random.Random, error_rate: float) -> str:
    """A game of a player who guesses at random, and with probability `error_rate` outside the range."""
    low, high = range_of(prompt.key)
    secret, game = rng.randint(low, high), ""
    for _ in range(MAX_GUESSES):
        guess = rng.randrange(NUM_NUMBERS) if rng.random() < error_rate else rng.randint(low, high)
        game += f"{guess}\n"
        if guess == secret:
            break
        low, high = narrowed(low, high, guess, secret)
        game += written(low, high)
    return game


async def episode(task: Task, policy: Policy) -> Reward:
    """1 for the first guess, a tenth less for each further one; correct if bisection is never slower."""
    low, high = range_of(task.key)
    secret = task.random.randint(low, high)
    chat = policy.chat()
    for num_before in range(MAX_GUESSES):
        reply = await chat.say(written(low, high))
        guess = int(reply.text) if _NUMBER.fullmatch(reply.text.strip()) else None
        if guess == secret:
            return Reward(1 - num_before / MAX_GUESSES, num_before < int(task.answer))
        if guess is not None:
            low, high = narrowed(low, high, guess, secret)
    return Reward(0.0, False)


def written(low: int, high: int) -> str:
    return f"{low}-{high}>"


def range_of(key: str) -> tuple[int, int]:
    low, high = key.rsplit(":", 1)[-1].split("-")
    return int(low), int(high)


def narrowed(low: int, high: int, guess: int, secret: int) -> tuple[int, int]:
    """The range that remains after a wrong guess; a guess outside it does not change it."""
    if low <= guess < secret:
        return guess + 1, high
    if secret < guess <= high:
        return low, guess - 1
    return low, high
