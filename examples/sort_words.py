"""Sort words alphabetically: a task and its reward in one file. Run: freerun train examples/sort_words.toml"""

import random

WORDS = ("apple", "bear", "cat", "dog", "egg", "fish", "goat", "hat", "king", "leaf", "moon", "oak", "rain", "sun")


def prompts(num_prompts: int = 500, num_words: int = 2):
    """Rows for the recipe's templates: deterministic, without duplicates."""
    rng = random.Random(0)
    lists = {tuple(rng.sample(WORDS, num_words)): None for _ in range(num_prompts)}
    for words in lists:
        yield {"words": " ".join(words), "sorted": " ".join(sorted(words))}


def reward(prompt: str, completion: str, answer: str) -> float:
    """1 (solved) for exactly the sorted words; otherwise -1 to 0, by how many are in place."""
    expected, found = answer.split(), completion.split()
    num_right = sum(a == b for a, b in zip(expected, found, strict=False))
    return 1.0 if found == expected else num_right / len(expected) - 1.0
