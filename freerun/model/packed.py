"""Weights packed in oneDNN's memory order, for products of few rows with large matrices on CPUs.

    weight   [N, K]             row by row, as trained and published
    packed   [N/64, K, 64]      64 rows side by side, as vector registers read them

A plain product reorders the matrix at every call. With the 8 to 64 rows of a decode step this costs as much as the
product: SmolLM2's layers reach half of the peak without packed weights and nine tenths with them. The price is a
second copy of each weight (docs/decisions/0016-engine-speed.md), and a third into which the next version is packed
while this one is in use (docs/decisions/0043-swapped-weights.md).
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import torch
from torch import Tensor

MIN_PACKED_ELEMENTS = 2**18
"""Minimal size of a matrix worth packing: below, oneDNN's overhead (15 microseconds a call) exceeds the gain."""
ROWS_SIDE_BY_SIDE = 64
COLLIDING_BYTES = 1024
"""Rows at a multiple of this distance are packed through a temporary copy, in less than half the time."""
TYPICAL_ROWS = 32
"""Expected number of rows of the other factor, by which oneDNN may choose the order."""


def is_worth_packing(weight: Tensor) -> bool:
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_plain and weight.numel() >= MIN_PACKED_ELEMENTS and torch.backends.mkldnn.is_available()


class PackedWeight:
    """A packed copy of a weight; it never changes while it is in use."""

    def __init__(self, weight: Tensor, *, spare: PackedWeight | None = None) -> None:
        """`spare`, of the same shape, gives up its memory, which is faster, and must not be used any more."""
        self._opaque: Tensor
        if spare is not None and _has_known_order(weight.shape):
            self._opaque = spare._opaque
            _copy_in_blocks(weight, _blocks_of(self._opaque, weight.shape))
        else:
            self._opaque = _pack(weight)
        self.is_shared = False
        """Whether several models use it, so that no model may give its memory away."""

    def linear(self, x_TC: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x_TC, self._opaque, bias, "none", [], "")
        return product


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), TYPICAL_ROWS)
    return packed


@functools.cache
def _has_known_order(shape: torch.Size) -> bool:
    """Whether such a matrix is packed in the order we know; depends on processor, shape and library version."""
    # The bits of consecutive integers: all entries differ, so no other order looks like ours.
    probe = torch.arange(shape.numel(), dtype=torch.int32).view(torch.float32).view(shape)
    packed = _pack(probe)
    if shape[0] % ROWS_SIDE_BY_SIDE or torch.ops.mkldnn._nbytes(packed) != probe.nbytes:
        return False
    return np.array_equal(_blocks_of(packed, shape), _in_blocks(probe))


def _in_blocks(weight: Tensor) -> np.ndarray:
    rows = weight.detach().numpy().reshape(-1, ROWS_SIDE_BY_SIDE, weight.shape[1])
    return rows.transpose(0, 2, 1)


def _copy_in_blocks(weight: Tensor, blocks: np.ndarray) -> None:
    if weight.shape[1] * weight.itemsize % COLLIDING_BYTES:
        np.copyto(blocks, _in_blocks(weight))
        return
    # Rows at this distance map to few lines of the L1 cache and evict each other before use. So they are first
    # copied to rows one cache line further apart.
    apart = np.empty((ROWS_SIDE_BY_SIDE, weight.shape[1] + 16), dtype=np.float32)[:, :-16]
    for rows, block in zip(_in_blocks(weight), blocks, strict=True):
        np.copyto(apart, rows.T)
        np.copyto(block, apart.T)


def _blocks_of(packed: Tensor, shape: torch.Size) -> np.ndarray:
    """A view of an opaque tensor's memory in the known order; valid while the tensor lives."""
    num_bytes = torch.ops.mkldnn._nbytes(packed)
    memory = (ctypes.c_char * num_bytes).from_address(torch.ops.mkldnn.data_ptr(packed))
    return np.frombuffer(memory, dtype=np.float32).reshape(-1, shape[1], ROWS_SIDE_BY_SIDE)
