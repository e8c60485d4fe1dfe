"""How the tokens of a step become one number: the weight of each completion's tokens in the sum.

    token       1 / (completion tokens of the step)
    sequence    1 / (completions of the step x tokens of this completion)
    fixed       1 / (completions of the step x sampling.max_completion_tokens)

The weights follow from the lengths of all the step's completions, whether or not they are computed, and from
nothing else: no minibatch, micro-batch or rank changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Aggregation = Literal["token", "sequence", "fixed"]


def token_weights(lengths: Sequence[int], aggregation: Aggregation, *, max_completion_tokens: int) -> list[float]:
    """For each completion of a step, what one of its tokens weighs."""
    match aggregation:
        case "token":
            return [1 / sum(lengths)] * len(lengths)
        case "sequence":
            return [1 / (len(lengths) * length) for length in lengths]
        case "fixed":
            return [1 / (len(lengths) * max_completion_tokens)] * len(lengths)
