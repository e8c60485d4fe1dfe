"""Tries the user's functions of [objective] before a run starts: each must exist and accept its arguments.

They are imported in another process (`trainer/try_axes.py`): importing runs the user's code and needs torch.
"""

import subprocess

import msgspec

from freerun.config.objective import AXES
from freerun.config.recipe import Recipe
from freerun.errors import ConfigError
from freerun.processes.interpreter import python_command


def check_own_objective(recipe: Recipe) -> None:
    """Raise if a function of the objective cannot be imported or called; do nothing without such functions."""
    objective, limit = recipe.objective, recipe.runtime.start_seconds
    own = [f'objective.{axis} = "{getattr(objective, axis)}"' for axis in AXES if objective.is_users(axis)]
    if not own:
        return
    what = f"config: {', '.join(own)}:"
    try:
        tried = subprocess.run(
            python_command("freerun.trainer.try_axes"),
            input=msgspec.json.encode(objective),
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what} importing took longer than runtime.start_seconds = {limit:g}") from None
    if tried.stdout:
        raise ConfigError(tried.stdout.decode(errors="replace"))
    if tried.returncode:
        log = tried.stderr.decode(errors="replace").strip()
        raise ConfigError(f"{what} importing ended its process with status {tried.returncode}:\n{log}")
