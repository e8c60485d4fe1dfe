"""A problem: what a task knows before a run gives it tokens, an ordinal and so makes it a prompt.

The held-out split depends on the keys alone, not on the run's seed, so that runs with other seeds and
`freerun eval` are measured on the same problems.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from freerun.errors import DataError


@dataclass(frozen=True)
class Problem:
    """A question, its reference answer, and a key that is unique within its task."""

    key: str
    text: str
    answer: str
    shot: str = ""
    """What it has as its completion when it is shown as a solved example; empty shows the answer."""


@dataclass(frozen=True)
class Problems:
    """The problems of a task; those held out are in hash order, so that any first part is a fair sample."""

    training: tuple[Problem, ...]
    held_out: tuple[Problem, ...]
    shots: tuple[Problem, ...] = ()
    """Solved examples for every prompt; neither trained on nor held out."""


def split(problems: Iterable[Problem], *, held_out_fraction: float) -> Problems:
    """Hold out `round(held_out_fraction * n)` problems; those for training keep their order."""
    all_problems = tuple(problems)
    num_held_out = round(held_out_fraction * len(all_problems))
    if not 0 < num_held_out < len(all_problems):
        side = "evaluation" if num_held_out == 0 else "training"
        raise DataError(
            f"data.held_out_fraction = {held_out_fraction} of {len(all_problems)} problems leaves none for "
            f"{side}; change it or add problems"
        )
    held_out = in_hash_order(all_problems)[:num_held_out]
    held_out_keys = {problem.key for problem in held_out}
    return Problems(
        training=tuple(problem for problem in all_problems if problem.key not in held_out_keys),
        held_out=held_out,
    )


def set_shots_aside(problems: Problems, num_shots: int) -> Problems:
    """Take the first training problems in hash order as solved examples: the same in every run.

    None of them is evaluated: what is held out may be the same file, or repeat a question.
    """
    if num_shots >= len(problems.training):
        raise DataError(
            f"data.num_shots = {num_shots} of {len(problems.training)} training problems leaves none to train on; "
            "lower it or add problems"
        )
    shots = in_hash_order(problems.training)[:num_shots]
    shown = {problem.key for problem in shots}
    training = tuple(problem for problem in problems.training if problem.key not in shown)
    asked = {problem.text for problem in shots}
    held_out = tuple(problem for problem in problems.held_out if problem.text not in asked)
    if not held_out:
        raise DataError(
            f"data.num_shots = {num_shots} shows all {len(problems.held_out)} held-out problems as solved "
            "examples, which leaves none for evaluation; lower it or hold out others"
        )
    return Problems(training=training, held_out=held_out, shots=shots)


def in_hash_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """A fixed shuffle: sorted by the sha256 of the key."""
    return tuple(sorted(problems, key=lambda problem: hashlib.sha256(problem.key.encode()).digest()))
