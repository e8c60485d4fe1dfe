"""The trainer's start message: the same for a new run, a resumed run and a replay."""

from pathlib import Path

from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import Checkpoint
from freerun.types import WeightRoute
from freerun.workers.messages import StartTrainer


def trainer_start(
    recipe: Recipe,
    checkpoint: Checkpoint | None,
    *,
    companions: Path,
    reference: Path,
    weights: WeightRoute | None,
    borrows_cores: bool = False,
) -> StartTrainer:
    """Start from the checkpoint, or from the model of the recipe."""
    saved, has_adapter = checkpoint.model_directory if checkpoint else None, recipe.lora.is_on
    return StartTrainer(
        model_directory=recipe.model.path if has_adapter or saved is None else str(saved),
        adapter_directory=str(saved) if has_adapter and saved else "",
        lora=recipe.lora,
        seed=recipe.run.seed,
        companions_directory=str(companions),
        train=recipe.train,
        objective=recipe.objective,
        temperature=recipe.sampling.temperature,
        max_completion_tokens=recipe.sampling.max_completion_tokens,
        is_truncated=recipe.sampling.top_k > 0 or recipe.sampling.top_p < 1,
        version=checkpoint.state.version if checkpoint else 0,
        optimizer_file=str(checkpoint.optimizer_file) if checkpoint and checkpoint.has_optimizer else "",
        is_in_sft=checkpoint is not None and checkpoint.state.sft is not None,
        reference_directory=str(reference) if recipe.objective.kl_coefficient > 0 else "",
        weights=weights,
        num_engine_gpus=recipe.engine.num_workers * recipe.engine.num_gpus if recipe.generates else 0,
        borrows_cores=borrows_cores,
    )
