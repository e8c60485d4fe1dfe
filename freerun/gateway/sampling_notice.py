"""Clients learn that the recipe's sampling settings win over theirs.

The trainer divides logits by one temperature: a reply sampled with another one could not be trained on. So every
answer carries the settings in `x-freerun-sampling`, and the log says once that a client asked for others.
"""

import logging
from collections.abc import Mapping

from freerun.types import Sampling

HEADER = "x-freerun-sampling"
_NEUTRAL = {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
"""What a recipe has no key for: it samples as if these were set."""
_log = logging.getLogger(__name__)


class SamplingNotice:
    """The header of an answer, and one line in the log."""

    def __init__(self, sampling: Sampling) -> None:
        of_recipe = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        self._settings: dict[str, float] = {**of_recipe, **_NEUTRAL}
        self._shown = _shown(of_recipe)
        self._is_told = False

    def of(self, asked: Mapping[str, float]) -> dict[str, str]:
        """The header, for a client that asked for these settings."""
        others = {name: value for name, value in asked.items() if value != self._settings[name]}
        if others and not self._is_told:
            self._is_told = True
            _log.warning("a client asks for %s; replies are sampled with %s", _shown(others), self._shown)
        return {HEADER: self._shown}


def _shown(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in settings.items())
