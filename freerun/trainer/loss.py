"""The one loss behind all objectives; it knows neither model nor packing.

    - sum  token weight x behaviour weight x gain(ratio, advantage)        aggregation, correction, clip
    + sum  token weight x kl_coefficient x k3(reference, current)
    - sum  token weight x entropy_coefficient x entropy
    + sum  token weight x value_coefficient x (value - return)^2 / 2

It is a sum over the tokens of a micro-batch, with weights fixed for the whole step (`aggregation.py`): the sum
over all micro-batches is the step's loss, however they are packed. The ratio is current / proximal and the
behaviour weight proximal / behaviour; without a correction the ratio is current / behaviour.

Only the first term is corrected for staleness. The others are averages over the tokens as sampled: on stale tokens
they are biased towards what the behaviour policy visited.

Shapes: L loss tokens (sampled tokens of a micro-batch), K calls.
"""

# ruff: noqa: N815 - the fields are tensors, and tensors carry their shape in the name

from dataclasses import dataclass

import torch
from torch import Tensor

from freerun.config.objective import ObjectiveConfig
from freerun.trainer.axes import axis_function
from freerun.trainer.batch import MicroBatch
from freerun.trainer.critic import squared_error
from freerun.trainer.logprobs import PolicyOutputs
from freerun.trainer.ratio import at_level


@dataclass(frozen=True)
class Loss:
    """A micro-batch's share of the step's loss, and its parts."""

    total: Tensor
    """Weighted sum over tokens, differentiable."""
    num_clipped: int
    """Tokens trained on that a hard clip holds back."""
    num_masked: int
    """Tokens left out by the correction."""
    reference_kl: float = 0.0
    """Sum over tokens, unweighted."""
    value_loss: float = 0.0
    """Weighted sum over tokens, without its coefficient."""
    is_clipped_L: Tensor | None = None
    """Which trained tokens are held back by a hard clip; None if the objective has none."""


def compute_loss(
    outputs: PolicyOutputs,
    micro_batch: MicroBatch,
    *,
    proximal_logprobs_L: Tensor | None,
    objective: ObjectiveConfig,
) -> Loss:
    """The loss of a micro-batch, from the policy's current outputs."""
    policy_L, is_clipped_L, num_masked = _policy_terms(outputs, micro_batch, proximal_logprobs_L, objective)
    terms_L = policy_L
    reference_kl = value_loss = 0.0
    if objective.kl_coefficient > 0:
        assert micro_batch.reference_logprobs_L is not None
        kl_L = k3(outputs.logprobs_L, micro_batch.reference_logprobs_L)
        terms_L = terms_L + objective.kl_coefficient * kl_L
        reference_kl = float(kl_L.detach().sum())
    if objective.entropy_coefficient > 0:
        assert outputs.entropies_L is not None
        terms_L = terms_L - objective.entropy_coefficient * outputs.entropies_L
    if objective.has_critic:
        assert outputs.values_L is not None
        assert micro_batch.returns_L is not None
        errors_L = squared_error(outputs.values_L, micro_batch.returns_L)
        terms_L = terms_L + objective.value_coefficient * errors_L
        value_loss = float((micro_batch.token_weights_L * errors_L.detach()).sum())
    total = (micro_batch.token_weights_L * terms_L).sum()
    num_clipped = 0 if is_clipped_L is None else int(is_clipped_L.sum())
    return Loss(total, num_clipped, num_masked, reference_kl, value_loss, is_clipped_L)


def _policy_terms(
    outputs: PolicyOutputs, micro_batch: MicroBatch, proximal_L: Tensor | None, objective: ObjectiveConfig
) -> tuple[Tensor, Tensor | None, int]:
    """Each token's negative weighted gain, which tokens are clipped, and how many are masked out."""
    behaviour_L, call_lengths_K = micro_batch.behaviour_logprobs_L, micro_batch.call_lengths_K
    if objective.uses_proximal:
        assert proximal_L is not None
        anchor_L = proximal_L
    else:
        anchor_L = behaviour_L
    ratios_L = torch.exp(at_level(outputs.logprobs_L - anchor_L, call_lengths_K, objective.ratio))
    clip, correct = axis_function(objective, "clip"), axis_function(objective, "correction")
    gains_L, is_clipped_L = clip(ratios_L, outputs.logprobs_L, micro_batch.advantages_L, objective)
    # Off-policy correction is outside the clip: it weighs the token, it does not move the trust region.
    weights_L: Tensor = correct(at_level(anchor_L - behaviour_L, call_lengths_K, objective.ratio), objective)
    if micro_batch.is_kept_L is not None:
        weights_L = torch.where(micro_batch.is_kept_L, weights_L, 0.0)
    is_trained_L = weights_L > 0
    is_clipped_L = None if is_clipped_L is None else is_clipped_L & is_trained_L
    return -(weights_L * gains_L), is_clipped_L, int((~is_trained_L).sum())


def k3(logprobs_L: Tensor, reference_logprobs_L: Tensor) -> Tensor:
    """An estimate of KL(policy, reference) from each sampled token: never negative, unbiased on-policy."""
    log_ratios_L = reference_logprobs_L - logprobs_L
    return torch.expm1(log_ratios_L) - log_ratios_L
