"""Trajectories to train on: groups of one prompt each, completions of long-tailed lengths, as plain JSON.

Token ids are random, since the work depends only on lengths. All sides get the same trajectories, with the
advantages that freerun computes from the rewards, and must reach the same gradient norm.
"""

import math
from typing import Any

import numpy as np

from freerun.trainer.advantage import normalise

PROMPT_TOKENS = 60
MEDIAN_TOKENS, DEVIATION, MAX_TOKENS = 64, 1.0, 512
"""Completion lengths are log-normal and cut at the limit, as with a reasoning policy: mean 101, p90 230."""


def make_groups(*, num_groups: int, group_size: int, vocab_size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Lengths depend only on the number of trajectories and the seed, not on the groups."""
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
    """Prompt and completion tokens over all trajectories."""
    return sum(len(group["prompt"]) + len(ids) for group in groups for ids in group["completions"])
