"""What the trainer computes of a policy: one packed forward, logits only where a loss needs them.

With bfloat16, forward and backward run under torch's autocast; weights, residual stream and everything after the
logits stay float32.

The same function gives current outputs (with gradient), and proximal and reference ones (under `torch.no_grad`).
The logprobs are those of the sampling distribution before top-k and top-p: the logits divided by the sampling
temperature. Full logits are the fastest head measured. Their memory, one float per vocabulary entry and loss token
(`cross_entropy.py`; more with an entropy bonus), is what `train.micro_batch_tokens` bounds.

Shapes: T packed tokens, L loss tokens, C model width, V vocabulary.
"""

# ruff: noqa: N815 - the fields are tensors, and tensors carry their shape in the name

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from freerun.model.attention import PackedCausalAttention
from freerun.model.decoder import Decoder
from freerun.trainer.batch import PackedSequences
from freerun.trainer.cross_entropy import consume_logits


@dataclass(frozen=True)
class PolicyOutputs:
    """For each completion token, in the order of `PackedSequences.targets_L`."""

    logprobs_L: Tensor
    """Log-probability of the token given all before it."""
    entropies_L: Tensor | None = None
    """Exact entropy of the distribution it was drawn from, if asked for."""
    values_L: Tensor | None = None
    """The critic's value of the state before it, if there is a critic."""


def policy_outputs(
    model: Decoder,
    packed: PackedSequences,
    *,
    temperature: float,
    critic: nn.Linear | None = None,
    with_entropies: bool = False,
    dtype: torch.dtype = torch.float32,
) -> PolicyOutputs:
    """One forward over packed sequences, where they and the model are."""
    with nullcontext() if dtype == torch.float32 else torch.autocast(packed.token_ids_T.device.type, dtype):
        hidden_TC = model(packed.token_ids_T, packed.positions_T, PackedCausalAttention(packed.families))
        # Not hidden_TC[...]: its backward adds to a shared prompt from several threads, in no fixed order.
        hidden_LC = hidden_TC.index_select(0, packed.predictors_L)
        # Hidden states are divided, not logits: there are far fewer of them.
        logits_LV = model.logits(hidden_LC / temperature).float()
    # Entropies are taken first: the logprobs consume the logits.
    entropies_L = _entropies(logits_LV) if with_entropies else None
    return PolicyOutputs(
        logprobs_L=consume_logits(logits_LV, packed.targets_L),
        entropies_L=entropies_L,
        # Detached: the critic reads the policy's features and does not train them (`critic.py`).
        values_L=critic(hidden_LC.detach()).float().squeeze(-1) if critic is not None else None,
    )


def completion_logprobs(
    model: Decoder, packed: PackedSequences, *, temperature: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The logprobs alone."""
    return policy_outputs(model, packed, temperature=temperature, dtype=dtype).logprobs_L


def _entropies(logits_LV: Tensor) -> Tensor:
    log_probabilities_LV = torch.log_softmax(logits_LV, dim=-1)
    return -(log_probabilities_LV.exp() * log_probabilities_LV).sum(dim=-1)
