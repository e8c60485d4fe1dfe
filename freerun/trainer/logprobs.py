"""The policy's outputs in the trainer: one packed forward pass, with logits only where a loss needs them.

With bfloat16, forward and backward run under torch's autocast; weights, residual stream and everything after the
logits stay float32.

The same function gives current outputs (with gradient), and proximal and reference ones (under `torch.no_grad`).
The logprobs are those of the sampling distribution before top-k and top-p: the logits divided by the sampling
temperature. Logits are computed in chunks (`head.py`).

Shapes: T packed tokens, L loss tokens, C model width.
"""

# ruff: noqa: N815 - the fields are tensors, and tensors carry their shape in the name

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from freerun.model.attention import PackedCausalAttention
from freerun.model.decoder import Decoder
from freerun.trainer.batch import PackedSequences
from freerun.trainer.head import target_logprobs


@dataclass(frozen=True)
class PolicyOutputs:
    """Outputs per completion token, in the order of `PackedSequences.targets_L`."""

    logprobs_L: Tensor
    """Log-probability of the token given all tokens before it."""
    entropies_L: Tensor | None = None
    """Exact entropy of the distribution it was drawn from, if asked for."""
    values_L: Tensor | None = None
    """The critic's value of the state before the token, if there is a critic."""


def policy_outputs(
    model: Decoder,
    packed: PackedSequences,
    *,
    temperature: float,
    critic: nn.Linear | None = None,
    with_entropies: bool = False,
    dtype: torch.dtype = torch.float32,
) -> PolicyOutputs:
    """One forward pass over packed sequences; they must be on the model's device."""
    is_cast = dtype != torch.float32
    with torch.autocast(packed.token_ids_T.device.type, dtype) if is_cast else nullcontext():
        hidden_TC = model(packed.token_ids_T, packed.positions_T, PackedCausalAttention(packed.families))
    # Not hidden_TC[...]: its backward adds to a shared prompt from several threads, in no fixed order.
    hidden_LC = hidden_TC.index_select(0, packed.predictors_L)
    logprobs_L, entropies_L = target_logprobs(
        # Hidden states are divided, not logits: there are far fewer of them.
        hidden_LC / temperature,
        model.head_weight,
        packed.targets_L,
        dtype=dtype if is_cast else None,
        with_entropies=with_entropies,
    )
    return PolicyOutputs(
        logprobs_L=logprobs_L,
        entropies_L=entropies_L,
        # Detached: the critic reads the policy's features and does not train them (`critic.py`).
        values_L=critic(hidden_LC.detach()).float().squeeze(-1) if critic is not None else None,
    )


def completion_logprobs(
    model: Decoder, packed: PackedSequences, *, temperature: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The logprobs alone."""
    return policy_outputs(model, packed, temperature=temperature, dtype=dtype).logprobs_L
