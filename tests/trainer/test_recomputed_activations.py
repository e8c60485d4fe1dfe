"""`train.recompute_activations` changes what a step keeps in memory and not one bit of what it computes."""

from collections.abc import Callable

import pytest
import torch
from rank_scenarios import Outcome, some_sessions, some_steps, supervised, train, with_adapter
from training_batches import config, make_trainer, tiny_decoder

from freerun.config.objective import PRESETS, ObjectiveConfig
from freerun.trainer.ranks import SingleRank

STEPS: dict[str, Callable[[bool], Outcome]] = {
    "decoupled": lambda is_on: train(SingleRank(), some_steps(), ObjectiveConfig(), recompute_activations=is_on),
    "critic": lambda is_on: train(SingleRank(), some_sessions(), PRESETS["ppo"], recompute_activations=is_on),
    "bfloat16": lambda is_on: train(
        SingleRank(), some_steps(), ObjectiveConfig(), dtype="bfloat16", recompute_activations=is_on
    ),
    "adapter": lambda is_on: with_adapter(SingleRank(), recompute_activations=is_on),
    "supervised": lambda is_on: supervised(SingleRank(), num_rows=7, recompute_activations=is_on),
}


@pytest.mark.parametrize("run", STEPS.values(), ids=STEPS)
def test_steps_have_the_same_bits(run: Callable[[bool], Outcome]) -> None:
    plain, recomputed = run(False), run(True)
    assert plain.tensors.keys() == recomputed.tensors.keys()
    for name, tensor in plain.tensors.items():
        assert torch.equal(recomputed.tensors[name], tensor), name
    for ours, theirs in zip(recomputed.reports, plain.reports, strict=True):
        assert {k: v for k, v in ours.items() if k != "train_tokens_per_second"} == {
            k: v for k, v in theirs.items() if k != "train_tokens_per_second"
        }


def test_a_trainer_sets_what_its_recipe_says() -> None:
    model = tiny_decoder()
    for is_on in (True, False):
        make_trainer(model, config(recompute_activations=is_on))
        assert {block.is_recomputed for block in model.blocks} == {is_on}
