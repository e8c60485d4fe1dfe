"""The trainer's view of its ranks: processes that hold shares of one model and divide each minibatch.

Every rank gets the same batches and makes the same decisions from them. Ranks exchange only what the batch does
not contain: weights and gradients (by the shards themselves), a few sums, and outputs of each other's tokens where
something is decided or reported over all of them. All methods except the properties, `own` and `share` are
collective: every rank calls them, in the same order.

`SingleRank` is a trainer of one process, without torch.distributed; `freerun.trainer.fsdp` implements several.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from freerun.model.shares import Shares, Whole
from freerun.trainer.advantage import Floats64


class Ranks(Shares, Protocol):
    """One process's view of all the trainer's processes."""

    @property
    def rank(self) -> int:
        """Index from 0; rank 0 answers for all ranks."""
        ...

    @property
    def num_ranks(self) -> int: ...

    def share(self, full: Tensor, like: Tensor) -> Tensor:
        """A copy of this rank's share of a full tensor, sharded like `like`; only its rows are read."""
        ...

    def gather(self, values_1d: Tensor) -> list[Tensor]:
        """The values of every rank, by rank; their number may differ."""
        ...

    def add(self, values: Tensor) -> None:
        """Replace the values by their sum over the ranks; the same bits on every rank."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called it."""
        ...


class SingleRank(Whole):
    """A trainer that runs in one process."""

    rank = 0
    num_ranks = 1

    def share(self, full: Tensor, like: Tensor) -> Tensor:
        return full.clone()

    def gather(self, values_1d: Tensor) -> list[Tensor]:
        return [values_1d]

    def add(self, values: Tensor) -> None:
        pass

    def barrier(self) -> None:
        pass


def decide_together(ranks: Ranks, values_1d: Tensor, decide: Callable[[Tensor], Tensor]) -> Tensor:
    """Decide on the values of all ranks together; returns the decisions for this rank's values."""
    parts = ranks.gather(values_1d)
    decided: tuple[Tensor, ...] = decide(torch.cat(parts)).split([len(part) for part in parts])
    return decided[ranks.rank]


def gather_floats(ranks: Ranks, arrays: Iterable[Floats64]) -> Floats64:
    """The values of all ranks, concatenated."""
    own = torch.from_numpy(np.concatenate([np.empty(0), *arrays]))
    gathered: Floats64 = torch.cat(ranks.gather(own)).numpy()
    return gathered


def add_numbers(ranks: Ranks, numbers: Sequence[float]) -> list[float]:
    """The sum of each number over the ranks."""
    sums = torch.tensor(numbers, dtype=torch.float64)
    ranks.add(sums)
    return [float(number) for number in sums]


def whole_tensors(ranks: Ranks, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Full tensors, one at a time, so that no rank holds two. Every rank must iterate over all of them."""
    for name, tensor in tensors.items():
        yield name, ranks.whole(tensor)


def snapshot(ranks: Ranks, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the full tensors in the memory of rank 0; empty on other ranks."""
    return {name: full.to("cpu", copy=True) for name, full in whole_tensors(ranks, tensors) if ranks.rank == 0}
