"""Procedural tasks of reasoning-gym: `data.task = "reasoning-gym/NAME"`.

Its configuration, `size` and `seed` included, comes from `data.settings`. The reference answer of a prompt is
the whole entry as JSON, because the scorers of reasoning-gym need it (grader "reasoning-gym"). Entries that do
not survive JSON would silently be graded wrong, so a sample of entries is scored before and after a round trip.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

from freerun.config.data import DataConfig
from freerun.config.values import did_you_mean
from freerun.data.rows import Row, to_prompts
from freerun.data.settings import require_extra, settings_of
from freerun.data.task_prompt import TaskPrompt
from freerun.errors import ConfigError, DataError

GYM_PREFIX = "reasoning-gym/"
NUM_ENTRIES_CHECKED = 16


def prompts(config: DataConfig) -> tuple[TaskPrompt, ...]:
    """All distinct prompts of the task; they depend on the settings, not on the run's seed."""
    if config.answer != DataConfig.answer or config.answer_after:
        raise ConfigError(
            f'config: data.answer and data.answer_after mean nothing for data.task = "{config.task}", '
            "whose answers are what its scorer needs; remove them"
        )
    worded = dataclasses.replace(config, answer="{entry}", shot_template=config.shot_template or "{answer}")
    made = to_prompts(_rows(config.task, settings_of(config)), worded)
    if config.num_shots and not all(prompt.shot.strip() for prompt in made):
        raise ConfigError(
            f'config: data.num_shots = {config.num_shots}: data.task = "{config.task}" has a scorer but no '
            "reference answers to show; set it to 0"
        )
    return made


def _rows(task: str, settings: dict[str, Any]) -> Iterator[tuple[str, Row]]:
    gym = require_extra("reasoning_gym", needed_for=f'data.task = "{task}"')
    asked: set[str] = set()
    for index, entry in enumerate(_entries(gym, task, settings)):
        # Questions may repeat: a copy of a held-out prompt must not be in training.
        if entry["question"] in asked:
            continue
        asked.add(entry["question"])
        try:
            text = json.dumps(entry, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise _unusable(task, str(error)) from error
        if index < NUM_ENTRIES_CHECKED:
            _check_scoring(gym.get_score_answer_fn(entry["metadata"]["source_dataset"]), entry, text, task)
        # Some tasks have only a scorer and no reference answer.
        yield str(index), {"question": entry["question"], "answer": entry["answer"] or "", "entry": text}


def _entries(gym: Any, task: str, settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name, known = task.removeprefix(GYM_PREFIX), gym.factory.DATASETS
    if name not in known:
        tasks = [f"{GYM_PREFIX}{other}" for other in known]
        hint = did_you_mean(task, tasks, otherwise=f"it has {', '.join(sorted(known))}")
        raise ConfigError(f'config: data.task = "{task}" is no task of reasoning-gym{hint}')
    try:
        dataset = gym.create_dataset(name, **({"seed": 0} | settings))
    # Its configurations check themselves with assertions, and raise a TypeError for unknown settings.
    except (AssertionError, TypeError, ValueError) as error:
        fields = ", ".join(field.name for field in dataclasses.fields(known[name][1]))
        raise ConfigError(
            f'config: data.settings of data.task = "{task}" were refused ({error}); it has {fields}'
        ) from error
    try:
        yield from dataset
    # Settings of a wrong type, such as size="50", only fail when an entry is made.
    except Exception as error:
        raise ConfigError(
            f'config: data.settings of data.task = "{task}" make no prompts '
            f"({type(error).__name__}: {error}); change them"
        ) from error


def _check_scoring(score: Callable[..., float], entry: dict[str, Any], text: str, task: str) -> None:
    """Refuse an entry that is scored differently after a round trip through JSON."""
    answer = entry["answer"] or ""
    before = score(answer=answer, entry=entry)
    try:
        after = score(answer=answer, entry=json.loads(text))
    except Exception as error:  # a scorer may fail on a list where it expects a tuple
        raise _unusable(task, f"its scorer fails with {type(error).__name__}: {error}") from error
    if before != after:
        raise _unusable(task, f"its own answer scores {after} instead of {before}")


def _unusable(task: str, reason: str) -> DataError:
    return DataError(
        f'data.task = "{task}": its entries do not survive JSON ({reason}), so they cannot be graded; '
        "choose another task"
    )
