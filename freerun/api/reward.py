"""Where a reward function can run: in grader processes if they can import it, else only here."""

import sys
from collections.abc import Callable
from typing import Any

from freerun.errors import ConfigError
from freerun.reward.graders import CALLERS_MODULE

CALLERS_PLACE = CALLERS_MODULE + ":{}"
"""How a function that only the calling program has is named in the run's config."""


def importable_name(function: Callable[..., Any]) -> str:
    """`module:function` if another process can import it under this name; else empty."""
    if not callable(function):
        raise ConfigError(
            f"reward is of type {type(function).__name__}; pass a function such as "
            "def reward(prompt, completion, answer)"
        )
    module_name, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    module = sys.modules.get(module_name or "")
    is_importable = (
        module_name != CALLERS_MODULE
        and str(name).isidentifier()
        and getattr(module, "__file__", None) is not None
        and getattr(module, "__spec__", None) is not None
        and getattr(module, name, None) is function
    )
    return f"{module_name}:{name}" if is_importable else ""
