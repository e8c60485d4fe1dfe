"""`freerun.train`: what `freerun train` does, called by a program or a notebook."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freerun.api.anywhere import run_anywhere
from freerun.api.arguments import encode_rows, grader_name, require_type, with_rows, wrong_type
from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.events.events import Listener, RunOutcome
from freerun.events.reader import RunReader
from freerun.model.hub import with_local_model
from freerun.reward.user_call import call_of
from freerun.reward.user_function import check_function
from freerun.session.attachments import Attachments
from freerun.session.run_directory import names_a_run, recipe_of_run, recipe_to_resume
from freerun.session.train import train_to_end


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    outcome: RunOutcome
    reason: str
    """Why it failed, or stopped without saving; empty otherwise."""
    version: int
    """Number of steps trained."""
    model_directory: Path | None
    """The newest model, which `transformers` can load; None if none was saved."""
    run_directory: Path
    accuracy: float | None
    """Accuracy of the last held-out evaluation; None if there was none."""

    def reader(self) -> RunReader:
        """A reader of everything that was recorded; close it, or use it in a `with`."""
        return RunReader(self.run_directory)


def train(
    recipe: Recipe | str | Path,
    *,
    reward: Callable[..., Any] | None = None,
    data: Sequence[Mapping[str, Any]] | None = None,
    listeners: Sequence[Listener] = (),
    resume: bool = False,
) -> Result:
    """Run a recipe, given as a `Recipe`, a path or a name, and return how it ended.

    `reward` replaces the recipe's grader, `data` its data. Each listener gets every event. `resume` continues the
    run of this name; `recipe` may then be its directory. Wrong arguments raise a `FreerunError`; a run that fails
    is a `Result`.
    """
    rows = None if data is None else encode_rows(data)
    resolved = _resolve(recipe, resume=resume, has_rows=rows is not None)
    attached = Attachments(rows=rows, listeners=_checked_listeners(listeners))
    if reward is not None:
        grader, is_importable = grader_name(reward)
        resolved = dataclasses.replace(resolved, reward=dataclasses.replace(resolved.reward, grader=grader))
        if is_importable:
            call_of(grader, reward)
        else:
            check_function(grader, reward)
            attached = dataclasses.replace(attached, reward=reward)
    local = with_local_model(resolved)
    finished = run_anywhere(lambda: train_to_end(local, resume=resume, attached=attached), attached.stop)
    directory = Path(local.run.directory) / local.run.name
    with RunReader(directory) as reader:
        evals = reader.evals()
    return Result(
        outcome=finished.outcome,
        reason=finished.reason,
        version=finished.version,
        model_directory=Path(finished.model_directory) if finished.model_directory else None,
        run_directory=directory,
        accuracy=evals[-1].accuracy if evals else None,
    )


def _resolve(recipe: Recipe | str | Path, *, resume: bool, has_rows: bool) -> Recipe:
    """The resolved recipe; a run that is resumed by path or name has its own."""
    if isinstance(recipe, Recipe):
        return with_rows(recipe) if has_rows else recipe
    require_type("recipe", recipe, (str, Path), "a Recipe, a path or the name of a shipped recipe")
    path, overrides = Path(recipe), list[str]()
    if names_a_run(path):
        path, overrides = recipe_of_run(path, [], resume=resume)
    loaded = load_recipe(path, overrides)
    if resume:
        return recipe_to_resume(loaded, overrides)
    return with_rows(loaded) if has_rows else loaded


def _checked_listeners(listeners: Sequence[Listener]) -> tuple[Listener, ...]:
    require_type("listeners", listeners, (list, tuple), "a list of functions that take an event")
    for index, listener in enumerate(listeners):
        if not callable(listener):
            raise wrong_type(f"listeners[{index}]", listener, "functions that take an event")
    return tuple(listeners)
