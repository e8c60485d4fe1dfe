"""AdamW with global-norm clipping and decay on matrices only; non-finite updates are skipped.

An update whose gradient norm is not finite is not applied: weights, moments and the warm-up stay as they are, the
gradients are discarded, and the caller is told. One bad minibatch must not corrupt the moments of all later ones.

The state is saved and loaded as a flat dictionary of tensors, ready for safetensors:

    exp_avg.<parameter>   exp_avg_sq.<parameter>   step.<parameter>   num_updates
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from freerun.config.train import TrainConfig
from freerun.errors import CheckpointError
from freerun.trainer.ranks import Ranks, SingleRank

NUM_UPDATES = "num_updates"
MOMENTS = ("exp_avg", "exp_avg_sq")
BETAS = (0.9, 0.95)
"""Decay of the first and the second moment, as in the paper."""


class PlainAdamW(torch.optim.AdamW):
    """torch's AdamW without the wrappers around its methods; the arithmetic is torch's own.

    The wrappers keep torch's compiler away from these methods, and import it at the first call, which takes as
    long as importing torch itself. Nothing is compiled here, so a trainer starts without it.
    """

    add_param_group: Any = inspect.unwrap(torch.optim.AdamW.add_param_group)
    state_dict: Any = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict: Any = inspect.unwrap(torch.optim.AdamW.load_state_dict)
    zero_grad: Any = inspect.unwrap(torch.optim.AdamW.zero_grad)
    step: Any = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


@dataclass(frozen=True)
class Update:
    """The result of one minibatch's update."""

    lr: float
    grad_norm: float
    """Norm before clipping."""
    is_applied: bool
    """False if the norm was not finite."""


def learning_rate(config: TrainConfig, *, version: int, num_updates: int) -> float:
    """The learning rate of the update after `num_updates`, in the step from `version`.

    Linear from lr / warmup_updates during the warm-up; then constant, or falling linearly to 0 at the step after
    the last.
    """
    lr = config.lr
    if config.lr_schedule == "linear":
        lr *= max(0.0, 1 - version / config.num_steps)
    if num_updates >= config.warmup_updates:
        return lr
    return lr * (num_updates + 1) / config.warmup_updates


class Optimizer:
    """Owns the moments of a model's and its critic's parameters; consumes their gradients.

    With a sharded model it owns this rank's share. The critic is whole on every rank and is updated equally there.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        *,
        critic: nn.Module | None = None,
        critic_lr_scale: float = 1.0,
        ranks: Ranks | None = None,
    ) -> None:
        self.num_updates = 0
        self._ranks = ranks or SingleRank()
        self._max_grad_norm = config.max_grad_norm
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._policy = [*self._parameters.values()]
        self._head: list[nn.Parameter] = []
        matrices = [p for p in self._policy if p.ndim >= 2]
        vectors = [p for p in self._policy if p.ndim < 2]
        parameter_groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": config.weight_decay, "lr_scale": 1.0},
            {"params": vectors, "weight_decay": 0.0, "lr_scale": 1.0},
        ]
        if critic is not None:
            head = {f"critic.{name}": p for name, p in critic.named_parameters()}
            self._parameters |= head
            self._head = [*head.values()]
            parameter_groups.append({"params": self._head, "weight_decay": 0.0, "lr_scale": critic_lr_scale})
        self._adamw = PlainAdamW(
            parameter_groups,
            lr=config.lr,
            betas=BETAS,
            eps=config.adam_eps,
            fused=all(p.device.type in ("cpu", "cuda") for p in self._parameters.values()),
        )

    def update(self, lr: float) -> Update:
        """Clip and apply the accumulated gradients, or skip them if they are not finite; clears them."""
        for parameter in self._head:
            assert parameter.grad is not None
            self._ranks.add(parameter.grad)
        # Clipped separately: a large error of the critic must not shorten the policy's step.
        norm, head_norm = self._clip(self._policy), self._clip(self._head)
        is_applied = math.isfinite(norm) and math.isfinite(head_norm)
        if is_applied:
            for parameter_group in self._adamw.param_groups:
                parameter_group["lr"] = lr * parameter_group["lr_scale"]
            self._adamw.step()
            self.num_updates += 1
        self._adamw.zero_grad(set_to_none=True)
        return Update(lr=lr, grad_norm=norm, is_applied=is_applied)

    def _clip(self, parameters: list[nn.Parameter]) -> float:
        """Scale gradients down to the limit; returns their norm over all ranks."""
        return float(self._ranks.whole(nn.utils.clip_grad_norm_(parameters, self._max_grad_norm)))

    def state(self) -> dict[str, Tensor]:
        """The live tensors under flat names, sharded ones as shares: write them out before the next update."""
        tensors = {
            f"{key}.{name}": tensor
            for name, parameter in self._parameters.items()
            for key, tensor in self._adamw.state.get(parameter, {}).items()
        }
        return {**tensors, NUM_UPDATES: torch.tensor(self.num_updates)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `state` returned, full tensors on every rank; the next update continues bit for bit."""
        states = self._by_parameter(tensors)
        template = self._adamw.state_dict()
        # AdamW numbers parameters in the order of its groups, which is not the model's.
        numbers = {
            id(parameter): number
            for ours, packed in zip(self._adamw.param_groups, template["param_groups"], strict=True)
            for parameter, number in zip(ours["params"], packed["params"], strict=True)
        }
        template["state"] = {numbers[id(self._parameters[name])]: state for name, state in states.items()}
        self._adamw.load_state_dict(template)
        self.num_updates = int(tensors[NUM_UPDATES])

    def _by_parameter(self, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
        states: dict[str, dict[str, Any]] = {}
        for flat_name, tensor in tensors.items():
            if flat_name == NUM_UPDATES:
                continue
            key, _, name = flat_name.partition(".")
            parameter = self._parameters.get(name)
            if parameter is None or (key in MOMENTS and tensor.shape != parameter.shape):
                raise CheckpointError(
                    f'optimizer state "{flat_name}" of shape {list(tensor.shape)} is not of this model; '
                    "resume with the model the checkpoint was made with"
                )
            states.setdefault(name, {})[key] = (
                self._ranks.share(tensor, like=parameter) if key in MOMENTS else tensor.clone()
            )
        self._require_complete(tensors, states)
        return states

    def _require_complete(self, tensors: Mapping[str, Tensor], states: Mapping[str, dict[str, Any]]) -> None:
        if NUM_UPDATES not in tensors:
            raise CheckpointError(f'optimizer state has no "{NUM_UPDATES}"; the checkpoint is incomplete')
        expected = {*MOMENTS, "step"}
        has_begun = int(tensors[NUM_UPDATES]) > 0
        for name in self._parameters if has_begun else ():
            missing = expected - states.get(name, {}).keys()
            if missing:
                raise CheckpointError(
                    f'optimizer state has no "{min(missing)}.{name}"; the checkpoint is incomplete'
                )
