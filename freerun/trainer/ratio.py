"""Token or sequence level: what a log ratio of two policies is taken over.

    token       log p(token) - log q(token)
    sequence    the mean of these over the completion, for each of its tokens (GSPO): the exponential is the ratio
                of the completion's probabilities, to the power of 1 / tokens

Shapes: L loss tokens, N completions of a micro-batch (never divided between micro-batches).
"""

import torch
from torch import Tensor

from freerun.config.objective import Level


def at_level(log_ratios_L: Tensor, lengths_N: Tensor, level: Level) -> Tensor:
    """The tokens' log ratios, or for each token the mean over its completion; differentiable."""
    if level == "token":
        return log_ratios_L
    num_completions = len(lengths_N)
    # Without the known size this would wait for the GPU.
    completions_L = torch.arange(num_completions, device=lengths_N.device).repeat_interleave(
        lengths_N, output_size=len(log_ratios_L)
    )
    sums_N = log_ratios_L.new_zeros(num_completions).index_add(0, completions_L, log_ratios_L)
    # Not by [...]: its backward adds from several threads, in no fixed order.
    return (sums_N / lengths_N).index_select(0, completions_L)
