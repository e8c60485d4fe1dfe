"""The position of each parameter in one flat buffer; both sides derive it from the model.

Whole models travel in the engines' dtype: the trainer, which keeps float32, rounds once per publication, to the
same bits that every engine would round to. With an adapter only the adapter travels; both sides read the frozen
base from its directory. An adapter is small and stays float32, so a server can merge it without a loss.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from freerun.model.decoder import Decoder
from freerun.model.lora import trained_parameters

ALIGNMENT_BYTES = 64  # a cache line, and the width of the widest vector loads


@dataclass(frozen=True)
class Place:
    """One parameter's place in the buffer."""

    offset: int
    shape: tuple[int, ...]
    num_bytes: int


class WeightLayout:
    """Positions of the trained parameters, in the model's order, each aligned."""

    def __init__(self, model: Decoder, dtype: torch.dtype = torch.float32) -> None:
        trained = trained_parameters(model)
        is_whole = len(trained) == len(dict(model.named_parameters()))
        self.dtype = dtype if is_whole else torch.float32
        self.places: dict[str, Place] = {}
        offset = 0
        for name, parameter in trained.items():
            shape = tuple(parameter.shape)
            place = Place(offset, shape, num_bytes=math.prod(shape) * self.dtype.itemsize)
            self.places[name] = place
            offset = -(-(offset + place.num_bytes) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.num_bytes = offset

    def views(self, buffer_B: Tensor) -> dict[str, Tensor]:
        """The parameters as views into a byte buffer; nothing is copied."""
        return {
            name: buffer_B[place.offset : place.offset + place.num_bytes].view(self.dtype).view(place.shape)
            for name, place in self.places.items()
        }
