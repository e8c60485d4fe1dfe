"""A problem: what a task knows before a run gives it tokens, an ordinal and so makes it a prompt.

The held-out split depends on the keys and on which texts are equal, not on the run's seed: runs with other seeds
and `freerun eval` are measured on the same problems. Problems with the same text fall on the same side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
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
    """Hold out `round(held_out_fraction * n)` problems, or fewer if equal ones do not fit."""
    all_problems = tuple(problems)
    num_wanted = round(held_out_fraction * len(all_problems))
    held_out_keys = keys_to_hold_out({problem.key: problem.text for problem in all_problems}, num_wanted)
    if not 0 < len(held_out_keys) < len(all_problems):
        side = "training" if held_out_keys else "evaluation"
        num_different = len({problem.text for problem in all_problems})
        equal = f", only {num_different} of them different," if num_different < len(all_problems) else ""
        raise DataError(
            f"data.held_out_fraction = {held_out_fraction} of {len(all_problems)} problems{equal} leaves none for "
            f"{side}; change it or add problems"
        )
    return Problems(
        training=tuple(problem for problem in all_problems if problem.key not in held_out_keys),
        held_out=in_hash_order(problem for problem in all_problems if problem.key in held_out_keys),
    )


def keys_to_hold_out(contents: Mapping[str, Hashable], num_wanted: int) -> set[str]:
    """Keys in hash order, each together with all keys of equal content, as long as they fit into `num_wanted`."""
    with_content: dict[Hashable, list[str]] = {}
    for key, content in contents.items():
        with_content.setdefault(content, []).append(key)
    chosen: set[str] = set()
    for key in sorted(contents, key=_hash_of):
        equal = with_content[contents[key]]
        if key not in chosen and len(chosen) + len(equal) <= num_wanted:
            chosen.update(equal)
    return chosen


def check_apart(problems: Problems) -> None:
    """Refuse to hold out what is trained on: an evaluation would measure what the model has seen."""
    trained = {problem.text: problem.key for problem in problems.training}
    shared = [problem for problem in problems.held_out if problem.text in trained]
    if shared:
        first = shared[0]
        raise DataError(
            f"{len(shared)} of {len(problems.held_out)} held-out prompts are trained on too (such as {first.key}, "
            f"which is equal to {trained[first.text]}); remove them on one side, or hold out other data: "
            'data.held_out_path = "" holds out a part of the training data'
        )


def set_shots_aside(problems: Problems, num_shots: int) -> Problems:
    """Take the first training problems in hash order as solved examples: the same in every run.

    A problem with the text of one of them is neither trained on nor evaluated: its prompt would show its answer.
    """
    if num_shots >= len(problems.training):
        raise _too_many_shots(num_shots, problems)
    shots = in_hash_order(problems.training)[:num_shots]
    asked = {problem.text for problem in shots}
    training = tuple(problem for problem in problems.training if problem.text not in asked)
    held_out = tuple(problem for problem in problems.held_out if problem.text not in asked)
    if not held_out:
        raise DataError(
            f"data.num_shots = {num_shots} shows all {len(problems.held_out)} held-out problems as solved "
            "examples, which leaves none for evaluation; lower it or hold out others"
        )
    if not training:
        raise _too_many_shots(num_shots, problems)
    return Problems(training=training, held_out=held_out, shots=shots)


def _too_many_shots(num_shots: int, problems: Problems) -> DataError:
    return DataError(
        f"data.num_shots = {num_shots} of {len(problems.training)} training problems leaves none to train on; "
        "lower it or add problems"
    )


def in_hash_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """A fixed shuffle: sorted by the sha256 of the key."""
    return tuple(sorted(problems, key=lambda problem: _hash_of(problem.key)))


def _hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
