"""Decides whose sampling settings are used: the recipe's, or those that a client asks for.

    training        the recipe's. The trainer divides logits by a single temperature: a reply sampled with
                    another one could not be trained on
    serving alone   the client's, where it sets any

Every answer carries the settings in `x-freerun-sampling`; the log says once if a client asked for others.
"""

import logging
from collections.abc import Mapping

from freerun.chat.messages import AS_IN_RECIPE, CallSampling
from freerun.config.values import MAX_TEMPERATURE
from freerun.gateway.refusals import RefusedError
from freerun.types import Sampling

HEADER = "x-freerun-sampling"
_NEUTRAL = {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
"""Neutral values of settings that a recipe has no key for; it samples as if these were set."""
_GREEDY_TEMPERATURE = 0.001
"""Dividing by less would overflow; below it the most likely token is certain anyway."""
_LEAST_TOP_P = 1e-6
"""Used for a client's 0, which means only the most likely token."""
_log = logging.getLogger(__name__)


class SamplingRule:
    """Decides how the replies to a request are sampled."""

    def __init__(self, sampling: Sampling, *, clients_choose: bool) -> None:
        self._of_recipe = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        self._clients_choose = clients_choose
        self._is_told = False

    def settle(self, asked: Mapping[str, float]) -> tuple[CallSampling, dict[str, str]]:
        """The settings to use for a client that asked for `asked`, and the header that reports them."""
        chosen = _chosen(asked) if self._clients_choose else AS_IN_RECIPE
        used: dict[str, float] = {
            name: value if (own := getattr(chosen, name)) is None else own
            for name, value in self._of_recipe.items()
        }
        if not self._is_told:
            self._tell(asked, used)
        return chosen, {HEADER: _shown(used)}

    def _tell(self, asked: Mapping[str, float], used: Mapping[str, float]) -> None:
        """Log settings that a client asked for and does not get."""
        settings = {**used, **_NEUTRAL}
        chosen = used if self._clients_choose else {}
        others = {name: value for name, value in asked.items() if value != settings[name] and name not in chosen}
        if others:
            self._is_told = True
            _log.warning("a client asks for %s; replies are sampled with %s", _shown(others), _shown(used))


def _chosen(asked: Mapping[str, float]) -> CallSampling:
    """The client's settings, limited to what engines accept."""
    temperature, top_p, top_k = (asked.get(name) for name in ("temperature", "top_p", "top_k"))
    _check("temperature", temperature, lowest=0, highest=MAX_TEMPERATURE)
    _check("top_p", top_p, lowest=0, highest=1)
    if top_k is not None and top_k < -1:
        raise RefusedError(f"top_k: {top_k:g} must be at least 0, which samples from all tokens", param="top_k")
    if temperature is not None and temperature < _GREEDY_TEMPERATURE:
        temperature = 0.0
    return CallSampling(
        temperature=temperature,
        top_p=None if top_p is None else max(top_p, _LEAST_TOP_P),
        top_k=None if top_k is None else max(int(top_k), 0),
    )


def _check(name: str, value: float | None, *, lowest: float, highest: float) -> None:
    if value is not None and not lowest <= value <= highest:
        raise RefusedError(f"{name}: {value:g} must be from {lowest:g} to {highest:g}", param=name)


def _shown(settings: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in settings.items())
