"""How the tokens of a step become one number: the weight of each sample's tokens in the sum.

    token       1 / (sampled tokens of the step)
    sequence    1 / (samples of the step x sampled tokens of this sample)
    fixed       1 / (samples of the step x sampling.max_completion_tokens)

The weights follow from the lengths of all the step's samples, whether or not they are computed, and from nothing
else: no minibatch, micro-batch or rank changes them, nor the number of sequences that a session became. `axes.py`
has the signature of these functions.
"""

from collections.abc import Sequence

from freerun.config.objective import ObjectiveConfig


def over_tokens(lengths: Sequence[int], max_completion_tokens: int, objective: ObjectiveConfig) -> list[float]:
    return [1 / sum(lengths)] * len(lengths)


def over_sequences(lengths: Sequence[int], max_completion_tokens: int, objective: ObjectiveConfig) -> list[float]:
    return [1 / (len(lengths) * length) for length in lengths]


def over_fixed_length(
    lengths: Sequence[int], max_completion_tokens: int, objective: ObjectiveConfig
) -> list[float]:
    return [1 / (len(lengths) * max_completion_tokens)] * len(lengths)
