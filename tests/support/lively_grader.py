"""A grader for tests that even a random model pleases now and then, and whose mood depends on the answer."""

import time


def score(prompt: str, completion: str, answer: str) -> float:
    """More digits are better; a comma in the answer's favourite place is better still."""
    digits = sum(character.isdigit() for character in completion)
    return digits / 4 - 1.0 + (0.5 if answer[:1] in completion else 0.0)


def slow_score(prompt: str, completion: str, answer: str) -> float:
    """As `score`, but slow enough that something can happen meanwhile."""
    time.sleep(0.02)
    return score(prompt, completion, answer)


def broken(prompt: str, completion: str, answer: str) -> float:
    raise ValueError("this grader never works")
