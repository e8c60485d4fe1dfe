"""Weights as they are read: float32, every number finite."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from freerun.errors import ModelError
from freerun.model.json_file import shown


def finite(tensor: Tensor, name: str, directory: Path) -> Tensor:
    """The tensor in float32; refuses one with NaN or infinity, under which every logprob would be NaN."""
    weight = tensor.to(torch.float32)
    # Both are NaN if any number is: one pass, nothing allocated.
    least, most = weight.aminmax()
    if not (torch.isfinite(least) and torch.isfinite(most)):
        raise ModelError(
            f"{directory}: tensor {shown(name)} holds NaN or infinity; use another checkpoint, "
            "or fetch the model again"
        )
    return weight
