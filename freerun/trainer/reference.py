"""The reference policy: version 0, saved before training changes it.

New and resumed runs both read it from the directory, so they use the same bits.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from freerun.model.checkpoint import empty_model, load_shares
from freerun.model.decoder import Decoder
from freerun.model.new_directory import new_directory, reported_growth
from freerun.model.trained import TrainedModel
from freerun.trainer.ranks import Ranks, snapshot


def keep_reference(
    trained: TrainedModel, directory: Path, *, companions: Path, ranks: Ranks, on_growth: Callable[[], None]
) -> None:
    """Write the weights of version 0 as a model directory, replacing one left by a failed start.

    `on_growth` is called from a thread while writing makes progress.
    """
    weights = snapshot(ranks, trained.state())
    if ranks.rank == 0:
        shutil.rmtree(directory, ignore_errors=True)
        with new_directory(directory) as temporary, reported_growth(temporary, on_growth):
            trained.save(weights, temporary, companions=companions)
    ranks.barrier()


def load_reference(directory: Path, ranks: Ranks, *, device: torch.device) -> Decoder:
    """The frozen policy, sharded like the trained one."""
    model = empty_model(directory).requires_grad_(False)
    load_shares(model, directory, ranks, device=device)
    return model
