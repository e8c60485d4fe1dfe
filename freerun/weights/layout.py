"""The position of each parameter in one flat buffer; both sides derive it from the model.

Weights travel in float32, the trainer's dtype, for engines of any dtype. Of a model with an adapter only the
adapter travels: both sides read the frozen base from its directory.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from freerun.model.decoder import Decoder
from freerun.model.lora import trained_parameters

DTYPE = torch.float32
ALIGNMENT_BYTES = 64  # a cache line, and the width of the widest vector loads


@dataclass(frozen=True)
class Place:
    """One parameter's place in the buffer."""

    offset: int
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE.itemsize


class WeightLayout:
    """Trained parameters one after the other, in the model's order, each aligned."""

    def __init__(self, model: Decoder) -> None:
        self.places: dict[str, Place] = {}
        offset = 0
        for name, parameter in trained_parameters(model).items():
            place = Place(offset, tuple(parameter.shape))
            self.places[name] = place
            offset = -(-(offset + place.num_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.num_bytes = offset

    def views(self, buffer_B: Tensor) -> dict[str, Tensor]:
        """The parameters as views into a byte buffer; nothing is copied."""
        return {
            name: buffer_B[place.offset : place.offset + place.num_bytes].view(DTYPE).view(place.shape)
            for name, place in self.places.items()
        }
