"""The prompts of a task, before a run gives them tokens and ordinals, and the held-out split.

    row ──► TaskPrompt ──► Prompt        rows.py and the tasks; wording.py and source.py

The held-out split depends on keys and equal texts, not on the run's seed: runs with other seeds and `freerun
eval` are measured on the same prompts. Prompts with equal text are on the same side.
"""

import hashlib
import random
import unicodedata
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from freerun.errors import DataError


@dataclass(frozen=True)
class TaskPrompt:
    """A question, its reference answer, and a key that is unique within its task."""

    key: str
    text: str
    answer: str
    shot: str = ""
    """Its completion when it is shown as a solved example; if empty, the answer is shown."""
    row: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The fields of its data row; empty for a task that generates its prompts."""


@dataclass(frozen=True)
class TaskPrompts:
    """The prompts of a task; held-out ones are in hash order, so any prefix is a fair sample."""

    training: tuple[TaskPrompt, ...]
    held_out: tuple[TaskPrompt, ...]
    shots: tuple[TaskPrompt, ...] = ()
    """Solved examples for every prompt; neither trained on nor held out."""


def split(prompts: Iterable[TaskPrompt], *, held_out_fraction: float) -> TaskPrompts:
    """Hold out `round(held_out_fraction * n)` prompts, or fewer if equal ones do not fit."""
    all_prompts = tuple(prompts)
    num_wanted = round(held_out_fraction * len(all_prompts))
    held_out_keys = keys_to_hold_out({prompt.key: prompt.text for prompt in all_prompts}, num_wanted)
    if not 0 < len(held_out_keys) < len(all_prompts):
        side = "training" if held_out_keys else "evaluation"
        num_different = len({prompt.text for prompt in all_prompts})
        equal = f", only {num_different} of them different," if num_different < len(all_prompts) else ""
        raise DataError(
            f"data.held_out_fraction = {held_out_fraction} of {len(all_prompts)} prompts{equal} leaves none for "
            f"{side}; change it or add prompts"
        )
    return TaskPrompts(
        training=tuple(prompt for prompt in all_prompts if prompt.key not in held_out_keys),
        held_out=in_hash_order(prompt for prompt in all_prompts if prompt.key in held_out_keys),
    )


def keys_to_hold_out(contents: Mapping[str, Hashable], num_wanted: int) -> set[str]:
    """Keys in hash order, each with all keys of equal content, as long as they fit into `num_wanted`."""
    with_content: dict[Hashable, list[str]] = {}
    for key, content in contents.items():
        with_content.setdefault(content, []).append(key)
    chosen: set[str] = set()
    for key in sorted(contents, key=_hash_of):
        equal = with_content[contents[key]]
        if key not in chosen and len(chosen) + len(equal) <= num_wanted:
            chosen.update(equal)
    return chosen


def check_apart(prompts: TaskPrompts) -> None:
    """Raise if a training prompt is held out: an evaluation would measure what the model has seen."""
    trained = {prompt.text: prompt.key for prompt in prompts.training}
    shared = [prompt for prompt in prompts.held_out if prompt.text in trained]
    if shared:
        first = shared[0]
        raise DataError(
            f"{len(shared)} of {len(prompts.held_out)} held-out prompts are trained on too (such as {first.key}, "
            f"which is equal to {trained[first.text]}); remove them on one side, or hold out other data: "
            'data.held_out_path = "" holds out a part of the training data'
        )


def near_copies(prompts: TaskPrompts) -> list[tuple[TaskPrompt, TaskPrompt]]:
    """(held-out, training) pairs of prompts that differ only in case or whitespace."""
    trained = {_normalised(prompt.text): prompt for prompt in prompts.training}
    found = ((prompt, trained.get(_normalised(prompt.text))) for prompt in prompts.held_out)
    return [(prompt, copy) for prompt, copy in found if copy is not None]


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def set_shots_aside(prompts: TaskPrompts, num_shots: int) -> TaskPrompts:
    """Set aside the first training prompts in hash order as solved examples, the same in every run.

    A prompt with an example's text is neither trained on nor evaluated: the example would show its answer.
    """
    shots = in_hash_order(prompts.training)[:num_shots]
    asked = {prompt.text for prompt in shots}
    training = tuple(prompt for prompt in prompts.training if prompt.text not in asked)
    held_out = tuple(prompt for prompt in prompts.held_out if prompt.text not in asked)
    if not held_out:
        raise DataError(
            f"data.num_shots = {num_shots} shows all {len(prompts.held_out)} held-out prompts as solved "
            "examples, which leaves none for evaluation; lower it or hold out others"
        )
    if not training:
        raise DataError(
            f"data.num_shots = {num_shots} of {len(prompts.training)} training prompts leaves none to train on; "
            "lower it or add prompts"
        )
    return TaskPrompts(training=training, held_out=held_out, shots=shots)


def in_hash_order(prompts: Iterable[TaskPrompt]) -> tuple[TaskPrompt, ...]:
    """A fixed shuffle: sorted by the sha256 of the key."""
    return tuple(sorted(prompts, key=lambda prompt: _hash_of(prompt.key)))


def _hash_of(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def epoch_order(num_items: int, *, seed: int, epoch: int) -> list[int]:
    """The permutation of one epoch; it depends only on the arguments."""
    order = list(range(num_items))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def fingerprint_of(parts: Iterable[bytes]) -> str:
    """A hash of all parts and their boundaries."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
