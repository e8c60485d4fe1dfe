"""The warm start: supervised steps on the task's demonstrations, before version 0.

A model made from nothing gets no reward to learn from; a short imitation gives it some. Part of the recipe,
done by the trainer's own process with all cores, since nothing generates yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice

from freerun.config.recipe import Recipe
from freerun.data.tasks import demonstrations_of
from freerun.data.tokenizer import Tokenizer
from freerun.runtime.trainer_client import TrainerClient

RAMP_STEPS = 20


def learning_rate(step: int, num_steps: int, peak: float) -> float:
    """A short linear ramp, then a cosine from the peak down to a tenth of it."""
    ramp = min(1.0, (step + 1) / RAMP_STEPS)
    fall = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / num_steps))
    return peak * ramp * fall


async def warm_start(
    trainer: TrainerClient, recipe: Recipe, tokenizer: Tokenizer, *, on_step: Callable[[int, float], None]
) -> None:
    """Run all supervised steps; `on_step` hears the step's number and loss."""
    config = recipe.warm_start
    demonstrations = demonstrations_of(recipe.data, seed=recipe.run.seed, error_rate=config.error_rate)
    for step in range(config.num_steps):
        sequences = [
            (tokenizer.encode(prompt), tokenizer.encode(completion, add_special_tokens=False))
            for prompt, completion in islice(demonstrations, config.batch_size)
        ]
        loss = await trainer.supervise(sequences, learning_rate(step, config.num_steps, config.lr))
        on_step(step + 1, loss)
