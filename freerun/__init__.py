"""freerun: fully asynchronous reinforcement learning for language models.

The names in `__all__` are the public API (docs/library.md). Each is imported on first use: `import freerun` alone
imports neither torch nor numpy.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freerun.api.engine import TextEngine as Engine
    from freerun.api.evaluate import EvaluationResult, evaluate
    from freerun.api.train import Result, train
    from freerun.config.load import load_recipe
    from freerun.config.recipe import Recipe
    from freerun.errors import FreerunError
    from freerun.errors import TruncatedError as Truncated
    from freerun.events.reader import RunReader
    from freerun.events.selection import Selection
    from freerun.rollout.episode import Policy, Task
    from freerun.types import Reward

__version__ = "0.1.0"
__all__ = [
    "Engine",
    "EvaluationResult",
    "FreerunError",
    "Policy",
    "Recipe",
    "Result",
    "Reward",
    "RunReader",
    "Selection",
    "Task",
    "Truncated",
    "evaluate",
    "load_recipe",
    "train",
]

_HOMES = {
    "Engine": "freerun.api.engine:TextEngine",
    "EvaluationResult": "freerun.api.evaluate",
    "FreerunError": "freerun.errors",
    "Policy": "freerun.rollout.episode",
    "Recipe": "freerun.config.recipe",
    "Result": "freerun.api.train",
    "Reward": "freerun.types",
    "RunReader": "freerun.events.reader",
    "Selection": "freerun.events.selection",
    "Task": "freerun.rollout.episode",
    "Truncated": "freerun.errors:TruncatedError",
    "evaluate": "freerun.api.evaluate",
    "load_recipe": "freerun.config.load",
    "train": "freerun.api.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'freerun' has no attribute {name!r}")
    module, _, own_name = _HOMES[name].partition(":")
    value = globals()[name] = getattr(importlib.import_module(module), own_name or name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
