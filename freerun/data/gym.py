"""Procedural tasks of reasoning-gym: `data.task = "reasoning-gym/NAME"`.

Its configuration, `size` and `seed` included, comes from `data.settings`. The reference answer of a prompt is
the whole entry as JSON, because the scorers of reasoning-gym need it (grader "reasoning-gym"). Entries that do not
survive JSON would silently be graded wrong, so a sample of them is scored before and after first.
"""

import dataclasses
import json
from collections.abc import Iterator
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
    name = config.task.removeprefix(GYM_PREFIX)
    worded = dataclasses.replace(config, answer="{entry}", shot_template=config.shot_template or "{answer}")
    made = to_prompts(_rows(_make_dataset(name, settings_of(config)), name), worded)
    if config.num_shots and not all(prompt.shot.strip() for prompt in made):
        raise ConfigError(
            f'config: data.num_shots = {config.num_shots}: data.task = "{config.task}" has a scorer but no '
            "reference answers to show; set it to 0"
        )
    return made


def _make_dataset(name: str, settings: dict[str, Any]) -> Any:
    gym = require_extra("reasoning_gym", needed_for=f'data.task = "{GYM_PREFIX}{name}"')
    known = require_extra("reasoning_gym.factory", needed_for=f'data.task = "{GYM_PREFIX}{name}"').DATASETS
    if name not in known:
        tasks = [f"{GYM_PREFIX}{task}" for task in known]
        hint = did_you_mean(f"{GYM_PREFIX}{name}", tasks, otherwise=f"it has {', '.join(sorted(known))}")
        raise ConfigError(f'config: data.task = "{GYM_PREFIX}{name}" is no task of reasoning-gym{hint}')
    try:
        return gym.create_dataset(name, **({"seed": 0} | settings))
    # Its configurations check themselves with assertions, and refuse unknown settings with a TypeError.
    except (AssertionError, TypeError, ValueError) as error:
        fields = ", ".join(field.name for field in dataclasses.fields(known[name][1]))
        raise ConfigError(
            f'config: data.settings of data.task = "{GYM_PREFIX}{name}" were refused ({error}); it has {fields}'
        ) from error


def _rows(dataset: Any, name: str) -> Iterator[tuple[str, Row]]:
    asked: set[str] = set()
    for index, entry in enumerate(_entries(dataset, name)):
        # Questions may repeat: a copy in training would give a held-out prompt away.
        if entry["question"] in asked:
            continue
        asked.add(entry["question"])
        text = _as_json(entry, name)
        if index < NUM_ENTRIES_CHECKED:
            _check_scoring(entry, text, name)
        # Some tasks have no reference answer, only a scorer.
        yield str(index), {"question": entry["question"], "answer": entry["answer"] or "", "entry": text}


def _entries(dataset: Any, name: str) -> Iterator[dict[str, Any]]:
    try:
        yield from dataset
    # Settings of a wrong type, such as size="50", fail only when an entry is made.
    except Exception as error:
        raise ConfigError(
            f'config: data.settings of data.task = "{GYM_PREFIX}{name}" make no prompts '
            f"({type(error).__name__}: {error}); change them"
        ) from error


def _as_json(entry: dict[str, Any], name: str) -> str:
    try:
        return json.dumps(entry, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise _unusable(name, str(error)) from error


def _check_scoring(entry: dict[str, Any], text: str, name: str) -> None:
    """Refuse an entry that is scored differently after a round trip through JSON."""
    score = require_extra("reasoning_gym", needed_for=name).get_score_answer_fn(
        entry["metadata"]["source_dataset"]
    )
    answer = entry["answer"] or ""
    before = score(answer=answer, entry=entry)
    try:
        after = score(answer=answer, entry=json.loads(text))
    except Exception as error:  # a scorer may fail on a list where it expects a tuple
        raise _unusable(name, f"its scorer fails with {type(error).__name__}: {error}") from error
    if before != after:
        raise _unusable(name, f"its own answer scores {after} instead of {before}")


def _unusable(name: str, reason: str) -> DataError:
    return DataError(
        f'data.task = "{GYM_PREFIX}{name}": its entries do not survive JSON ({reason}), so they cannot be graded; '
        "choose another task"
    )
