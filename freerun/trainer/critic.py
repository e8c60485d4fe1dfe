"""The critic: a linear value head on the policy's trunk, and the advantages it gives each token.

The value of a completion token is that of the state before it: it is read where the logits that predict the token
are read. The head exists only in the trainer. It starts at zero, so the first advantages are plain rewards. Its
gradient stops at the trunk: otherwise its errors, as large as the reward, distorted the policy (Euclid, 16 steps,
one seed: accuracy 0.62 at the end instead of 0.82).

With V_t the values of the T sampled tokens of a completion, V_T+1 = 0 and the reward on the last token (GAE):

    delta_t = reward_t + gamma V_t+1 - V_t        A_t = delta_t + gamma lambda A_t+1        return_t = A_t + V_t

A completion that was cut off at the length limit ends like any other: its reward accounts for it. In a session the
last token of a call is followed by the first one of the next call. What the policy was given in between is part of
the environment's step: it has no value and no advantage, and its length is not discounted. `turn_discount`
multiplies gamma there, and rewards per turn are on the last token of each call (`timeline.py`).

Shapes: C hidden size, S sampled tokens of a step in the order of time, L loss tokens.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from freerun.errors import CheckpointError
from freerun.trainer.advantage import Floats64, normalise
from freerun.trainer.ranks import Ranks, decide_together
from freerun.trainer.timeline import Timeline

STATE_PREFIX = "critic."


def make_critic(hidden_size: int) -> nn.Linear:
    critic = nn.Linear(hidden_size, 1)
    nn.init.zeros_(critic.weight)
    nn.init.zeros_(critic.bias)
    return critic


def generalised_advantages(values_S: Floats64, timeline: Timeline, *, gamma: float, lam: float) -> Floats64:
    """GAE of a whole step, from its last token backwards; a discount of 0 separates the samples."""
    advantages_S = np.zeros_like(values_S)
    next_value = next_advantage = 0.0
    for t in reversed(range(len(values_S))):
        discount = gamma * timeline.discounts[t]
        delta = timeline.rewards[t] + discount * next_value - values_S[t]
        advantages_S[t] = next_advantage = delta + discount * lam * next_advantage
        next_value = values_S[t]
    return advantages_S


def advantages_and_returns(
    values_L: Tensor, places_L: Tensor, timeline: Timeline, *, gamma: float, lam: float, ranks: Ranks
) -> tuple[Tensor, Tensor]:
    """For this rank's tokens; advantages are normalised over all tokens of the step, returns are not."""
    all_places_L = torch.cat(ranks.gather(places_L)).numpy()

    def rated(all_values_L: Tensor) -> Tensor:
        values_S = np.empty(len(all_places_L))
        values_S[all_places_L] = all_values_L.numpy()
        advantages_S = generalised_advantages(values_S, timeline, gamma=gamma, lam=lam)
        return torch.from_numpy(advantages_S[all_places_L])

    raw_L = decide_together(ranks, values_L, rated)
    advantages_L = decide_together(ranks, raw_L, lambda all_L: torch.from_numpy(normalise(all_L.numpy())))
    return advantages_L, raw_L + values_L


def squared_error(values_L: Tensor, returns_L: Tensor) -> Tensor:
    return 0.5 * torch.square(values_L - returns_L)


def critic_state(critic: nn.Linear) -> dict[str, Tensor]:
    """The live weights under flat names, stored with the optimizer's state."""
    return {STATE_PREFIX + name: parameter.detach() for name, parameter in critic.named_parameters()}


def load_critic(critic: nn.Linear, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load what `critic_state` returned; returns the tensors that are not the critic's."""
    missing = critic_state(critic).keys() - tensors.keys()
    if missing:
        raise CheckpointError(
            f'optimizer state has no "{min(missing)}": the checkpoint was made without a critic; '
            'resume with the objective it was made with, not objective.advantage = "gae"'
        )
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(STATE_PREFIX)}
    critic.load_state_dict({name.removeprefix(STATE_PREFIX): tensor for name, tensor in own.items()})
    return {name: tensor for name, tensor in tensors.items() if name not in own}
