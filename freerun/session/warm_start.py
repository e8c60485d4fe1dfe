"""The warm start: supervised steps on the task's demonstrations, before version 0.

A model made from nothing gets no reward to learn from; a short imitation gives it some. Part of the recipe,
done by the trainer's own process with all cores, since nothing generates yet.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from freerun.config.recipe import Recipe
from freerun.data.demonstrations import demonstration_of
from freerun.data.tasks import demonstrations_of
from freerun.data.tokenizer import Tokenizer
from freerun.trainer.schedule import cosine_learning_rate
from freerun.workers.trainer_client import TrainerClient

RAMP_STEPS = 20


async def warm_start(
    trainer: TrainerClient, recipe: Recipe, tokenizer: Tokenizer, *, on_step: Callable[[int, float], None]
) -> None:
    """Run all supervised steps; `on_step` hears the step's number and loss."""
    config = recipe.warm_start
    demonstrations = demonstrations_of(recipe.data, seed=recipe.run.seed, error_rate=config.error_rate)
    for step in range(config.num_steps):
        batch = [
            demonstration_of(tokenizer.encode(prompt), tokenizer.encode(completion, add_special_tokens=False))
            for prompt, completion in islice(demonstrations, config.batch_size)
        ]
        lr = cosine_learning_rate(step, num_steps=config.num_steps, peak=config.lr, ramp_steps=RAMP_STEPS)
        loss = await trainer.supervise(batch, lr)
        on_step(step + 1, loss)
