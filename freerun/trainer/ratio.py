"""Ratios per token or per sequence.

    token       log p(token) - log q(token)
    sequence    the mean of these over the call, for each of its tokens (GSPO): the exponential is the ratio of the
                probabilities of what the call sampled, to the power of 1 / tokens

A completion of one turn is one call. In a session the ratio is per call, not per sequence: a call is sampled from
one prompt and never divided, while the number of sequences depends on what became of the history.

Shapes: L loss tokens, K calls of a micro-batch (never divided between micro-batches).
"""

import torch
from torch import Tensor

from freerun.config.objective import Level


def at_level(log_ratios_L: Tensor, call_lengths_K: Tensor, level: Level) -> Tensor:
    """The log ratio of each token, or the mean over its call; differentiable."""
    if level == "token":
        return log_ratios_L
    num_calls = len(call_lengths_K)
    # Without a known size this would wait for the GPU.
    calls_L = torch.arange(num_calls, device=call_lengths_K.device).repeat_interleave(
        call_lengths_K, output_size=len(log_ratios_L)
    )
    sums_K = log_ratios_L.new_zeros(num_calls).index_add(0, calls_L, log_ratios_L)
    # Not by [...]: its backward adds from several threads, in no fixed order.
    return (sums_K / call_lengths_K).index_select(0, calls_L)
