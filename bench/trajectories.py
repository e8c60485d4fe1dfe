"""Trajectories to train on: groups of one prompt each, completions of long-tailed lengths, as plain JSON.

Token ids are random, the work depends on lengths alone. All sides get the same ones, with the advantages that
freerun computes from the rewards, and must come to the same gradient norm.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from freerun.trainer.advantage import normalise

PROMPT_TOKENS = 60
MEDIAN_TOKENS, DEVIATION, MAX_TOKENS = 64, 1.0, 512
"""Completions are log-normal and cut off at the limit, as those of a policy that reasons: mean 101, p90 230."""


def make_groups(*, num_groups: int, group_size: int, vocab_size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Lengths depend on the number of trajectories and the seed only, whatever the groups."""
    rng = np.random.default_rng(seed)
    num_trajectories = num_groups * group_size
    lengths = np.clip(rng.lognormal(math.log(MEDIAN_TOKENS), DEVIATION, num_trajectories), 4, MAX_TOKENS).astype(
        int
    )
    rewards = rng.normal(size=num_trajectories)
    advantages = normalise(rewards)
    prompts = [rng.integers(3, vocab_size, PROMPT_TOKENS).tolist() for _ in range(num_groups)]
    completions = [rng.integers(3, vocab_size, length).tolist() for length in lengths]
    members = [slice(begin, begin + group_size) for begin in range(0, num_trajectories, group_size)]
    return [
        {
            "prompt": prompt,
            "completions": completions[own],
            "rewards": rewards[own].tolist(),
            "advantages": advantages[own].tolist(),
            # Of a uniform policy: weights between a trained one and it are neither 0 nor infinite.
            "behaviour_logprob": -math.log(vocab_size),
        }
        for prompt, own in zip(prompts, members, strict=True)
    ]


def num_tokens(groups: list[dict[str, Any]]) -> int:
    """Prompt and completion tokens, as each trajectory has them."""
    return sum(len(group["prompt"]) + len(ids) for group in groups for ids in group["completions"])
