"""Whether all numbers of a tensor are finite, and weights as they are read: float32, all of them finite."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from freerun.errors import ModelError
from freerun.model.json_file import shown


def is_finite(tensor: Tensor) -> bool:
    """Whether it holds neither NaN nor infinity, in one pass without a copy."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    # A NaN makes both of them NaN.
    least, most = torch.aminmax(tensor.detach())
    return bool(torch.isfinite(least) and torch.isfinite(most))


def finite(tensor: Tensor, name: str, directory: Path) -> Tensor:
    """The tensor in float32; refuses one with NaN or infinity, under which every logprob would be NaN."""
    weight = tensor.to(torch.float32)
    if not is_finite(weight):
        raise ModelError(
            f"{directory}: tensor {shown(name)} holds NaN or infinity; use another checkpoint, "
            "or fetch the model again"
        )
    return weight
