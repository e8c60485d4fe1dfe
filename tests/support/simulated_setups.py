"""Small simulated runs with costs that are easy to reason about."""

from typing import Any

from freerun.config.data import DataConfig
from freerun.config.engine import EngineConfig
from freerun.config.recipe import BufferConfig, Recipe, SamplingConfig
from freerun.config.reward import RewardConfig
from freerun.config.train import TrainConfig
from freerun.simulation.costs import LinearEngine, LinearTrainer, WeightCosts
from freerun.simulation.lengths import LognormalLengths
from freerun.simulation.run import Setup

CAP = 400


def make_recipe(**sections: Any) -> Recipe:
    defaults: dict[str, Any] = {
        "data": DataConfig(task="times-tables", max_prompt_tokens=20),
        "sampling": SamplingConfig(group_size=4, max_completion_tokens=CAP),
        "engine": EngineConfig(num_workers=2, num_slots=16, cache_tokens=20_000),
        "reward": RewardConfig(grader="exact", num_workers=2),
        "buffer": BufferConfig(max_staleness=2),
        "train": TrainConfig(num_steps=12, prompts_per_step=8),
    }
    return Recipe(**(defaults | sections))


def make_setup(**changes: Any) -> Setup:
    """Engines that decode a step in 10 ms, and a trainer that takes about as long as they do."""
    defaults: dict[str, Any] = {
        "recipe": make_recipe(),
        "engine_costs": LinearEngine(step=0.01, sequence=1e-4, cached_token=1e-7, prefill_token=1e-6),
        "trainer_costs": LinearTrainer(step=0.2, token=2e-4),
        "lengths": LognormalLengths(mu=4.5, sigma=0.6, cap=CAP, likeness=0.5),
        "weights": WeightCosts(hold_seconds=0.01, transfer_seconds=0.05, load_seconds=0.02),
        "prompt_tokens": 20,
        "num_warm_steps": 4,
    }
    return Setup(**(defaults | changes))
