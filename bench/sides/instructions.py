"""What both sides of the RL comparison are asked and rewarded for. Standard library only.

SmolLM2-135M answers these instructions, worded by its chat template, in lengths with a long tail: many of some 30
tokens, some beyond 256. Two steps of 8 prompts see each of them once, so lengths differ little from turn to turn.
The reward is a different number for nearly every completion: no group is without a gradient, so nobody may skip
its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

TOPICS = ("bread", "copper", "glass", "snow")
WORDINGS = (
    'Use the word "{}" in a sentence.',
    "Describe {} in one sentence.",
    "What colour is {}? Explain briefly.",
    "Tell me one interesting thing about {}.",
)


def problems() -> Iterator[dict[str, str]]:
    """Rows for `data.task`: 16 to train on, and one that a run can hold out."""
    for wording, topic in product(WORDINGS, TOPICS):
        yield {"question": wording.format(topic), "answer": "any"}
    yield {"question": "Describe a river in one sentence.", "answer": "any"}


def reward(prompt: str, completion: str, answer: str) -> float:
    """The share of its characters that are the letter e."""
    return completion.count("e") / max(1, len(completion))
