"""Every metric that a rule of health reads has a producer: the trainer, or the controller's training loop."""

import random

from read_metrics import names_read_by_rules
from simulated_run import World
from training_batches import config, make_groups, make_trainer, tiny_decoder

from freerun.config.objective import PRESETS
from freerun.config.recipe import Recipe, SamplingConfig
from freerun.config.train import TrainConfig
from freerun.events.events import StepFinished
from freerun.simulation.virtual_time import run_in_virtual_time


def test_every_metric_that_a_rule_reads_is_made() -> None:
    names = names_read_by_rules()
    assert {"equal_group_share", "gate_closed_seconds", "common_reward"} <= names
    by_trainer = make_trainer(tiny_decoder(), config(), PRESETS["grpo"]).step(make_groups()).metrics
    recipe = Recipe(
        sampling=SamplingConfig(group_size=2),
        train=TrainConfig(num_steps=2, prompts_per_step=2, num_minibatches=1),
    )
    world = World(recipe, random.Random(0), failure_rate=0.0, tail=1.0)
    run_in_virtual_time(world.session("end"))
    by_controller = [event.result.metrics for event in world.events if isinstance(event, StepFinished)]
    assert names - {*by_trainer, *by_controller[-1]} == {"num_calls"}, "that one is made of sessions of many calls"
