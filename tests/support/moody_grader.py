"""A reward of two parts for runs that must show everything: it tells completions apart, and sometimes fails."""

from typing import Any

NUM_MOODS = 12
"""One completion in so many cannot be graded."""


def score(prompt: str, completion: str, answer: str) -> dict[str, Any]:
    mood = sum(completion.encode()) + len(completion)
    if mood % NUM_MOODS == 7:
        raise ValueError("not in the mood")
    return {"digits": sum(c.isdigit() for c in completion) > 3, "evenness": float(mood % 3 == 0)}
