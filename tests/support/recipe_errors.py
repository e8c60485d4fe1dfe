"""The one-line error of a recipe that is refused."""

from pathlib import Path

import pytest

from freerun.config.load import load_recipe
from freerun.errors import ConfigError


def error_of(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)
