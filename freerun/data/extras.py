"""Packages that only some tasks need: imported when a recipe asks for them, and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from freerun.errors import DataError


def require_extra(module: str, *, needed_for: str) -> Any:
    """The module, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(f"{needed_for} needs {package} ({error}); pip install 'freerun[tasks]'") from error
