"""What both sides of the RL comparison are asked and rewarded for. Standard library only.

SmolLM2-135M answers these instructions, worded by its chat template, in lengths with a long tail. The reward has a
different value for practically every completion: no group is without a gradient, so nobody may skip its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

TOPICS = (
    "whales",
    "glass",
    "the moon",
    "bread",
    "violins",
    "rivers",
    "tea",
    "chess",
    "winter",
    "bridges",
    "maps",
    "salt",
)
WORDINGS = (
    "Tell me one interesting thing about {topic}.",
    "Describe {topic} in one sentence.",
)


def problems() -> Iterator[dict[str, str]]:
    """Rows as `data.task` wants them."""
    for wording, topic in product(WORDINGS, TOPICS):
        yield {"question": wording.format(topic=topic), "answer": "any"}


def reward(prompt: str, completion: str, answer: str) -> float:
    """How often the completion has the letter e: cheap, and seldom the same twice."""
    return completion.count("e") / max(1, len(completion))
