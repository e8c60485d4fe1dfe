"""Tasks by name: where their prompts come from, and what else they offer.

    file, datasets          rows at data.path
    reasoning-gym/NAME      procedural, by reasoning-gym
    times-tables, euclid, word-problems
                            procedural, one module here each
    module:function         the user's

Only this module has the list of tasks. A task with an alphabet can be learned by a model made from scratch; one
with demonstrations can warm it up. A user's module may define `ALPHABET` and `demonstration` too.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from freerun.config.data import DataConfig
from freerun.config.user_code import import_named, is_user_code
from freerun.config.values import did_you_mean
from freerun.data import euclid, files, gym, hub, times_tables, user_task, word_problems
from freerun.data.hub_files import file_of, what_is_missing
from freerun.data.settings import check_settings, require_no_wording, settings_of
from freerun.data.task_prompt import TaskPrompt, TaskPrompts, in_hash_order, set_shots_aside, split
from freerun.errors import ConfigError, ModelError

Demonstrate = Callable[[TaskPrompt, random.Random, float], str]
"""(prompt, random generator, share of wrong steps) -> a completion of the prompt."""


@dataclass(frozen=True)
class _Task:
    prompts: Callable[[DataConfig], Iterable[TaskPrompt]]
    alphabet: str = ""
    demonstrate: Demonstrate | None = None


def _procedural(module: Any) -> _Task:
    """A task of this package: a module with `prompts(**settings)`."""

    def prompts(config: DataConfig) -> Iterable[TaskPrompt]:
        require_no_wording(config)
        settings = settings_of(config)
        check_settings(module.prompts, settings, task=config.task)
        made: Iterable[TaskPrompt] = module.prompts(**settings)
        return made

    return _with_abilities(module, prompts)


def _with_abilities(module: Any, prompts: Callable[[DataConfig], Iterable[TaskPrompt]]) -> _Task:
    return _Task(prompts, getattr(module, "ALPHABET", ""), getattr(module, "demonstration", None))


_TASKS = {
    "file": _Task(lambda config: files.read(file_of(config.path), config)),
    "datasets": _Task(hub.read),
    "times-tables": _procedural(times_tables),
    "euclid": _procedural(euclid),
    "word-problems": _procedural(word_problems),
}


def _task_named(name: str) -> _Task:
    if name.startswith(gym.GYM_PREFIX):
        return _Task(gym.prompts)
    if is_user_code(name):
        module, function = import_named(name, setting="data.task")
        return _with_abilities(module, lambda config: user_task.prompts(function, config))
    if name not in _TASKS:
        own = 'your own function is written "module:function"'
        raise ConfigError(
            f'config: unknown task data.task = "{name}"; there are {", ".join(_TASKS)}, {gym.GYM_PREFIX}NAME'
            f"{did_you_mean(name, [*_TASKS, gym.GYM_PREFIX], otherwise=own)}"
        )
    return _TASKS[name]


def is_built_in(name: str) -> bool:
    return name in _TASKS


def load_prompts(config: DataConfig) -> TaskPrompts:
    """The task's prompts for training, held out, and shown as solved examples."""
    training = _task_named(config.task).prompts(config)
    if config.held_out_path and config.reads_rows:
        prompts = TaskPrompts(training=tuple(training), held_out=in_hash_order(_held_out_rows(config)))
    else:
        prompts = split(training, held_out_fraction=config.held_out_fraction)
    return set_shots_aside(prompts, config.num_shots) if config.num_shots else prompts


def _held_out_rows(config: DataConfig) -> tuple[TaskPrompt, ...]:
    if config.task == "datasets":
        return hub.read(config, split=config.held_out_path)
    return files.read(file_of(config.held_out_path), config)


def check_task(config: DataConfig) -> None:
    """Refuse an unknown task and missing files, without reading any data."""
    _task_named(config.task)
    for key, path in (("path", config.path), ("held_out_path", config.held_out_path)):
        if config.task == "file" and path and not file_of(path).is_file():
            raise ConfigError(f'config: data.{key} = "{path}" {what_is_missing(path)}')


def check_demonstrations(config: DataConfig) -> None:
    """Raise if the task has no demonstrations for SFT."""
    _demonstrate_of(config)


def has_alphabet(task: str) -> bool:
    """Whether a model can be made from scratch for this task."""
    return bool(_task_named(task).alphabet)


def alphabet_of(task: str) -> str:
    """The characters of a task's prompts and answers."""
    alphabet = _task_named(task).alphabet
    if not alphabet:
        raise ModelError(
            f'task "{task}" has no alphabet, so no model can be made for it; '
            f"set model.path to a model directory, or data.task to {_those_with('alphabet')}"
        )
    return alphabet


def demonstrations_of(config: DataConfig, *, seed: int, error_rate: float) -> Iterator[tuple[str, str]]:
    """Endless (prompt text, completion text) pairs from training prompts, determined by the seed."""
    demonstrate = _demonstrate_of(config)
    return _demonstrations(load_prompts(config).training, random.Random(seed), error_rate, demonstrate)


def _demonstrate_of(config: DataConfig) -> Demonstrate:
    demonstrate = _task_named(config.task).demonstrate
    if demonstrate is None:
        raise ConfigError(
            f'config: data.task = "{config.task}" has no demonstrations; set sft.path to a file of '
            f"them, sft.num_steps = 0, or data.task to {_those_with('demonstrate')}"
        )
    return demonstrate


def _demonstrations(
    training: tuple[TaskPrompt, ...], rng: random.Random, error_rate: float, demonstrate: Demonstrate
) -> Iterator[tuple[str, str]]:
    while True:
        for prompt in rng.sample(training, len(training)):
            yield prompt.text, demonstrate(prompt, rng, error_rate)


def _those_with(ability: str) -> str:
    return " or ".join(f'"{name}"' for name, task in _TASKS.items() if getattr(task, ability))
