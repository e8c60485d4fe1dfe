"""The prompts and the reward for both sides of the RL comparison. Standard library only.

With its chat template, SmolLM2-135M answers these instructions in long-tailed lengths: many of about 30 tokens,
some beyond 256. Two steps of 8 prompts see each of them once, so lengths vary little between measurements. The
reward differs for nearly every completion: every group has a gradient, so neither side can skip work.
"""

from collections.abc import Iterator
from itertools import product

TOPICS = ("bread", "copper", "glass", "snow")
WORDINGS = (
    'Use the word "{}" in a sentence.',
    "Describe {} in one sentence.",
    "What colour is {}? Explain briefly.",
    "Tell me one interesting thing about {}.",
)


def prompts() -> Iterator[dict[str, str]]:
    """Rows for `data.task`: 16 to train on, and one that a run can hold out."""
    for wording, topic in product(WORDINGS, TOPICS):
        yield {"question": wording.format(topic), "answer": "any"}
    yield {"question": "Describe a river in one sentence.", "answer": "any"}


def reward(prompt: str, completion: str, answer: str) -> float:
    """The share of its characters that are the letter e."""
    return completion.count("e") / max(1, len(completion))
