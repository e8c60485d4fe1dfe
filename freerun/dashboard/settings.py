"""The run's settings as text, and its objective in words."""

from collections.abc import Mapping
from typing import Any

from freerun.dashboard.source import Source

SETTINGS_OF_PLACE = ("run.name", "run.directory")
_WORDS = {
    "advantage": {
        "grpo": "the reward minus the mean of its group, over the deviation of the group",
        "global": "the reward minus the mean of the batch, over the deviation of the batch",
    },
    "clip": {"ppo": "the ratio of current to proximal policy is clipped"},
    "correction": {
        "decoupled": "tokens are weighed by proximal over behaviour policy, outside the clip",
        "none": "none: stale tokens count as fresh ones",
    },
    "aggregation": {"token": "every token of the step counts the same"},
}
_TITLES = {
    "advantage": "advantages",
    "clip": "trust region",
    "correction": "correction of stale tokens",
    "aggregation": "mean",
}


def settings_feed(source: Source, params: Mapping[str, str]) -> object:
    """All settings as text, and the objective in words."""
    settings = source.settings
    return {"settings": settings_of(settings), "objective": objective_in_words(settings)}


def settings_of(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: _shown(value) for key, value in values.items()}


def objective_in_words(settings: Mapping[str, Any]) -> list[str]:
    """One sentence per axis of the objective; empty if the settings are not known."""
    of = {key.removeprefix("objective."): value for key, value in settings.items() if key.startswith("objective.")}
    if not of:
        return []
    words = [f"{title}: {_in_words(axis, of)}" for axis, title in _TITLES.items() if axis in of]
    used = {*_TITLES, "preset", "clip_low", "clip_high"}
    others = [f"{name} {_shown(value)}" for name, value in of.items() if name not in used and value]
    return [*words, f"other settings: {', '.join(others)}"] if others else words


def _in_words(axis: str, objective: Mapping[str, Any]) -> str:
    value = _shown(objective[axis])
    told = _WORDS[axis].get(value)
    limits = [f"{name} {objective[name]}" for name in ("clip_low", "clip_high") if objective.get(name)]
    named = f"{value} ({', '.join(limits)})" if axis == "clip" and limits else value
    return f"{named}; {told}" if told else named


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value)
    return str(value)
