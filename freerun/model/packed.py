"""A weight in the order in which oneDNN multiplies by it, for generation on CPUs: few rows meet large matrices.

    weight   [N, K]             row by row, as trained and published
    packed   [N/64, K, 64]      64 rows side by side, as vector registers read them

A plain product brings the matrix into such an order at every call. With the 8 to 64 rows of a decode step this
costs as much as multiplying: SmolLM2's layers compute at half of the peak without, at nine tenths with packed
weights. The price is a second copy of them, and the copying at each load (docs/decisions/0016-engine-speed.md).
"""

from __future__ import annotations

import copy
import ctypes
import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from freerun.model.projections import MIN_PACKED_ELEMENTS

ROWS_SIDE_BY_SIDE = 64
COLLIDING_BYTES = 1024
"""Rows a multiple of this apart are packed by a detour that takes less than half the time."""
TYPICAL_ROWS = 32
"""Of the other factor; oneDNN may choose its order by it."""


def is_worth_packing(weight: Tensor) -> bool:
    is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_plain and weight.numel() >= MIN_PACKED_ELEMENTS and torch.backends.mkldnn.is_available()


class PackedWeight:
    """A packed copy of a weight, to be refreshed when the weight changes."""

    def __init__(self, weight: Tensor) -> None:
        self._opaque = _pack(weight)
        self._is_refreshed_in_place = _has_known_order(weight.shape)

    def refresh(self, weight: Tensor) -> None:
        """Pack the weight's new values, which is faster into memory that is there already."""
        if self._is_refreshed_in_place:
            _copy_in_blocks(weight, _blocks_of(self._opaque, weight.shape))
        else:
            self._opaque = _pack(weight)

    def linear(self, x_TC: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x_TC, self._opaque, bias, "none", [], "")
        return product

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        twin = copy.copy(self)
        twin._opaque = self._opaque.clone()
        return twin


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), TYPICAL_ROWS)
    return packed


@functools.cache
def _has_known_order(shape: torch.Size) -> bool:
    """Whether such a matrix is packed in the order we know: that depends on processor, shape and version."""
    # The bits of consecutive integers: no two entries are alike, so that no other order can pass for ours.
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
    # Rows so far apart fall on few lines of the first cache and drive each other out before they are used up: they
    # are first laid a line further apart.
    apart = np.empty((ROWS_SIDE_BY_SIDE, weight.shape[1] + 16), dtype=np.float32)[:, :-16]
    for rows, block in zip(_in_blocks(weight), blocks, strict=True):
        np.copyto(apart, rows.T)
        np.copyto(block, apart.T)


def _blocks_of(packed: Tensor, shape: torch.Size) -> np.ndarray:
    """The memory of an opaque tensor in the known order, in place; valid as long as the tensor lives."""
    num_bytes = torch.ops.mkldnn._nbytes(packed)
    memory = (ctypes.c_char * num_bytes).from_address(torch.ops.mkldnn.data_ptr(packed))
    return np.frombuffer(memory, dtype=np.float32).reshape(-1, shape[1], ROWS_SIDE_BY_SIDE)
