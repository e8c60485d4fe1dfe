"""The functions behind the keys of [objective]: built-in ones and the user's, called in the same way.

    advantage     (rewards, lengths, objective) -> advantages
    clip          (ratios_L, logprobs_L, advantages_L, objective) -> gains_L, is_clipped_L or None
    correction    (log_weights_L, objective) -> weights_L
    aggregation   (lengths, max_completion_tokens, objective) -> token weights

`rewards`, `lengths` (sampled tokens) and `advantages` of an advantage are lists with one float64 or int64 array
per group, with one number per sample; `lengths` of an aggregation is a list with one int per sample of the step,
and so are its weights. A sample is a completion, or a session of several calls in one or more sequences. Tensors
are float32 with one element per sampled token of a micro-batch (L). `objective` is the `ObjectiveConfig`, for its
constants.

A user's function is named "module:function" (`config/user_code.py`). It is imported once before the run starts
(`try_axes.py`) and again in the trainer's process. Everything it returns is checked: a wrong shape would be
broadcast silently, and a NaN would only show up as skipped updates.
"""

import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from freerun.config.objective import AXES, ObjectiveConfig
from freerun.config.user_code import check_signature, import_named
from freerun.errors import ConfigError
from freerun.trainer.advantage import Floats64, Ints64
from freerun.types import Group

PARAMETERS = {
    "advantage": ("rewards", "lengths", "objective"),
    "clip": ("ratios", "logprobs", "advantages", "objective"),
    "correction": ("log_weights", "objective"),
    "aggregation": ("lengths", "max_completion_tokens", "objective"),
}


def load_axes(objective: ObjectiveConfig) -> None:
    """Import the functions of all axes, or raise: an error must not wait for the first step."""
    for axis in AXES:
        axis_function(objective, axis)


def moves_without_advantage(objective: ObjectiveConfig) -> bool:
    """Whether a trajectory of advantage 0 has a gradient.

    A user's clip is assumed to give it one, unless its attribute `moves_without_advantage` is False.
    """
    if objective.has_critic or objective.kl_coefficient > 0 or objective.entropy_coefficient > 0:
        return True
    _, clip = import_named(objective.function("clip"), setting="objective.clip")
    return bool(getattr(clip, "moves_without_advantage", objective.is_users("clip")))


def axis_function(objective: ObjectiveConfig, axis: str) -> Callable[..., Any]:
    """The function of an axis, ready to be called; the results of a user's function are checked."""
    return _load(axis, objective.function(axis), objective.is_users(axis))


def compute_advantages(groups: Sequence[Group], objective: ObjectiveConfig) -> Floats64:
    """The advantages of all samples, group after group."""
    rewards = [np.array([reward.value for reward in group.rewards], dtype=np.float64) for group in groups]
    return np.concatenate(axis_function(objective, "advantage")(rewards, sampled_lengths(groups), objective))


def sampled_lengths(groups: Sequence[Group]) -> list[Ints64]:
    """For each group, the number of sampled tokens of each sample."""
    return [np.array([sample.num_sampled for sample in group.samples]) for group in groups]


def undivided_advantage(objective: ObjectiveConfig) -> Callable[..., Any]:
    """The function of `advantage`, without the division by a deviation."""
    return _load("advantage", objective.undivided_advantage, objective.is_users("advantage"))


@cache
def _load(axis: str, name: str, is_users: bool) -> Callable[..., Any]:
    _, function = import_named(name, setting=f"objective.{axis}")
    if not is_users:
        return function
    shape = f"{name.partition(':')[2]}({', '.join(PARAMETERS[axis])})"
    check_signature(function, *PARAMETERS[axis], name=name, setting=f"objective.{axis}", shape=shape)
    check, own = _CHECKS[axis], f'config: objective.{axis}: "{name}"'
    built_in = _load(axis, ObjectiveConfig().function(axis), False)

    def checked(*arguments: Any) -> Any:
        if isinstance(arguments[0], Tensor) and not arguments[0].numel():
            return built_in(*arguments)  # a rank without a micro-batch in this round
        try:
            result = function(*arguments)
        except Exception as error:
            raise ConfigError(f"{own} failed:\n{traceback.format_exc().strip()}") from error
        return check(result, arguments, f"{own} returned")

    return checked


def _check_advantages(result: Any, arguments: Sequence[Any], returned: str) -> list[Floats64]:
    groups = result if isinstance(result, list | tuple) else []
    advantages = [np.asarray(of_group, np.float64) for of_group in groups]
    shapes, expected = [a.shape for a in advantages], [rewards.shape for rewards in arguments[0]]
    _require(shapes == expected, f"{returned} arrays of shapes {shapes}; return one array per group: {expected}")
    is_finite = all(np.isfinite(a).all() for a in advantages)
    _require(is_finite, f"{returned} NaN or infinity; return finite advantages")
    return advantages


def _check_gains(result: Any, arguments: Sequence[Any], returned: str) -> tuple[Tensor, Tensor | None]:
    ratios_L = arguments[0]
    is_pair = isinstance(result, tuple) and len(result) == 2
    _require(is_pair, f"{returned} a {type(result).__name__}; return gains, is_clipped")
    gains_L, is_clipped_L = result
    _check_tensor(gains_L, ratios_L, f"{returned} gains", inputs=arguments[:3])
    _require(
        gains_L.requires_grad or not ratios_L.requires_grad,
        f"{returned} gains without a gradient; compute them from the ratios or logprobs, not detached",
    )
    if is_clipped_L is not None:
        _check_tensor(is_clipped_L, ratios_L.bool(), f"{returned} is_clipped")
    return gains_L, is_clipped_L


def _check_weights(weights_L: Any, arguments: Sequence[Any], returned: str) -> Tensor:
    _check_tensor(weights_L, arguments[0], f"{returned} weights", inputs=[torch.exp(arguments[0])])
    _require(not bool((weights_L < 0).any()), f"{returned} weights below 0; return 0 to leave a token out")
    return torch.as_tensor(weights_L)


def _check_token_weights(result: Any, arguments: Sequence[Any], returned: str) -> list[float]:
    weights, num_samples = np.asarray(result, np.float64), len(arguments[0])
    _require(
        weights.shape == (num_samples,) and bool(np.isfinite(weights).all()),
        f"{returned} weights of shape {list(weights.shape)}, or some that are not finite; return one number for "
        f"each of the {num_samples} samples",
    )
    return [float(weight) for weight in weights]


_CHECKS: dict[str, Callable[[Any, Sequence[Any], str], Any]] = {
    "advantage": _check_advantages,
    "clip": _check_gains,
    "correction": _check_weights,
    "aggregation": _check_token_weights,
}


def _check_tensor(result: Any, like: Tensor, returned: str, *, inputs: Sequence[Tensor] = ()) -> None:
    """Refuse another shape or dtype, and non-finite numbers where all inputs are finite.

    Non-finite inputs belong to an update that is skipped anyway.
    """
    expected = f"a tensor of shape {list(like.shape)} and {like.dtype}"
    if not isinstance(result, Tensor):
        raise ConfigError(f"{returned} as {type(result).__name__}; return {expected}")
    _require(
        result.shape == like.shape and result.dtype == like.dtype,
        f"{returned} of shape {list(result.shape)} and {result.dtype}; return {expected}",
    )
    is_bad = ~torch.isfinite(result)
    for tensor in inputs:
        is_bad &= torch.isfinite(tensor)
    num_bad = int(is_bad.sum())
    _require(num_bad == 0, f"{returned} that are NaN or infinite for {num_bad} tokens; return finite ones")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
