"""Prompts, episode and reward for sessions of four turns, and for completions of as many tokens.

The words of the user are the same on both sides: between the turns, or all at the end of the prompt.
"""

import random
from collections.abc import Iterator
from typing import Any

ALPHABET = "abcdefghijklmnopqrstuvwxyz .:?\n$"
NUM_TURNS = 4
TOKENS_PER_TURN = 32
USER = "go:\n"
PROMPT_CHARACTERS = 16
NUM_PROMPTS = 2000


def prompts(num_said: int = 0) -> Iterator[dict[str, str]]:
    """Random letters, and what the user says `num_said` times."""
    rng = random.Random(0)
    for _ in range(NUM_PROMPTS):
        letters = "".join(rng.choices(ALPHABET[:26], k=PROMPT_CHARACTERS))
        yield {"question": letters + USER * num_said, "answer": "any"}


async def episode(task: Any, policy: Any) -> float:
    """Four replies, which are graded as one text."""
    chat, said, words = policy.chat(), task.text, ""
    for _ in range(NUM_TURNS):
        words += (await chat.say(said)).text
        said = USER
    value: float = await task.grade(words)
    return value


def reward(prompt: str, completion: str, answer: str) -> float:
    """The share of its characters that are the letter e: it differs for nearly every completion."""
    return completion.count("e") / max(1, len(completion))
