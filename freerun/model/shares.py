"""Which rows of each parameter this process holds: all, or its share among several processes.

Models are read through this interface (`checkpoint.load_shares`), so a process reads only what it keeps.
"""

from typing import Protocol

from torch import Tensor

from freerun.model.decoder import Decoder


class Shares(Protocol):
    """One process's share of models; all methods but `own` are called by every process, in the same order."""

    def shard(self, model: Decoder) -> None:
        """Keep this process's share of each parameter and free the rest; gradients are summed over all."""
        ...

    def own(self, parameter: Tensor) -> tuple[Tensor, slice]:
        """The rows that this process holds, in place, and their position in the full tensor."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """The full tensor of which this process holds a share; an unsharded tensor is returned as it is."""
        ...


class Whole:
    """A process that holds whole models."""

    def shard(self, model: Decoder) -> None:
        pass

    def own(self, parameter: Tensor) -> tuple[Tensor, slice]:
        return parameter.detach(), slice(0, parameter.shape[0])

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor
