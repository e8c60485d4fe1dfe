"""Sort words by the alphabet: a task and its reward in one file. Try it: freerun train examples/sort_words.toml"""

import random

WORDS = ("apple", "bear", "cat", "dog", "egg", "fish", "goat", "hat", "king", "leaf", "moon", "oak", "rain", "sun")


def problems(num_problems: int = 500, num_words: int = 2):
    """Rows for the recipe's templates; the same ones every time, each once."""
    rng = random.Random(0)
    lists = {tuple(rng.sample(WORDS, num_words)): None for _ in range(num_problems)}
    for words in lists:
        yield {"words": " ".join(words), "sorted": " ".join(sorted(words))}


def reward(prompt: str, completion: str, answer: str) -> float:
    """1 for the sorted words and nothing else, which counts as solved; else -1 to 0 by how many are in place."""
    expected, found = answer.split(), completion.split()
    num_right = sum(a == b for a, b in zip(expected, found, strict=False))
    return 1.0 if found == expected else num_right / len(expected) - 1.0
