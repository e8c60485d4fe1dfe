"""Which keys differ between two recipes, and how that is said."""

from typing import NamedTuple

from freerun.config.load import key_types
from freerun.config.recipe import Recipe
from freerun.config.values import as_toml


class Change(NamedTuple):
    key: str
    before: str
    """The value as a recipe would write it."""
    after: str

    def __str__(self) -> str:
        return f"{self.key} = {self.after} (was {self.before})"


def changes_between(before: Recipe, after: Recipe) -> list[Change]:
    """The keys that differ, in the order of the sections; a mixture counts as one key."""
    found = []
    for key in key_types():
        section, name = key.split(".")
        was, now = (getattr(getattr(recipe, section), name) for recipe in (before, after))
        if was != now:
            found.append(Change(key, _written(was), _written(now)))
    return found


def _written(value: object) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, dict) else as_toml(value)
