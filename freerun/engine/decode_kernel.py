"""Attention of one new token in each of many cached sequences, compiled for this processor.

A CPU reads each cached position once, as far as each sequence goes: there is no mask, no padding, and what a row
computes does not depend on who shares the batch. For the three or four queries of a key head batched products of
torch spend most of their time on the way to the product; this takes half of it, or less.

Sums may be taken in any order, so that vector units can take them, but infinite and undefined numbers count: where
a score is one the result is undefined, as it would be in torch, and whoever samples from it notices.

Threads divide the rows so that each reads about as much. Compiling takes seconds, once on each machine: numba
keeps the result beside this file.

Shapes: S slots, R decode rows, K key/value heads, G query heads of each, H = K G, L positions, D head size; 2
stands for keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

MIN_SHARE = 2**19
"""Numbers that a thread has to read in a layer, or waking it takes longer than what it does: an estimate."""

_HELPERS = ThreadPoolExecutor(thread_name_prefix="attention")

_SIGNATURE = numba.void(
    numba.float32[:, :, :, :, ::1],
    numba.float32[:, :, :],
    numba.float32[:, :, :],
    numba.float32[:, :, :],
    numba.int64[::1],
    numba.int64[::1],
    numba.float32[:, :, ::1],
)
# Literals would be float64, and half as many would fit into a register.
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LOG2_E, _LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
_LOWEST = np.float32(-87)
"""exp of less is not a normal number."""
_E2, _E3, _E4, _E5, _E6 = (np.float32(1 / math.factorial(n)) for n in range(2, 7))
_EXPONENT_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)


def can_compile_for(cache_2SKLD: Tensor) -> bool:
    return cache_2SKLD.device.type == "cpu" and cache_2SKLD.dtype == torch.float32


class CompiledDecodeAttention:
    """Who decodes in this step and how far each sees; called once for each layer."""

    def __init__(self, cache_2SKLD: Tensor, slots: Sequence[int], positions: Sequence[int]) -> None:
        self._slots_R = np.array(slots, dtype=np.int64)
        self._positions_R = np.array(positions, dtype=np.int64)
        _, num_slots, num_kv_heads, slot_tokens, head_size = cache_2SKLD.shape
        # What is compiled does not look where it writes.
        assert 0 <= min(slots) <= max(slots) < num_slots, f"slots {slots} of {num_slots}"
        assert 0 <= min(positions) <= max(positions) < slot_tokens, f"positions {positions} of {slot_tokens}"
        ends_R = np.cumsum(self._positions_R + 1)
        num_read = int(ends_R[-1]) * 2 * num_kv_heads * head_size
        num_threads = max(1, min(torch.get_num_threads(), num_read // MIN_SHARE))
        bounds = np.searchsorted(ends_R, ends_R[-1] * np.arange(1, num_threads) // num_threads)
        self._shares = [slice(*pair) for pair in pairwise(sorted({0, *bounds.tolist(), len(slots)}))]

    def __call__(self, cache_2SKLD: Tensor, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        attended_RHD = torch.empty(q_RHD.shape)
        layer, attended = cache_2SKLD.numpy(), attended_RHD.numpy()
        arrays = q_RHD.numpy(), k_RKD.numpy(), v_RKD.numpy(), self._slots_R, self._positions_R, attended
        own, *others = ([array[share] for array in arrays] for share in self._shares)
        helping = [_HELPERS.submit(_attend, layer, *share) for share in others]
        _attend(layer, *own)
        for helper in helping:
            helper.result()
        return attended_RHD


_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
"""All that numba may assume, but not that every number is finite."""


def _compiled(function: Callable[..., None]) -> Any:
    try:
        return numba.njit(_SIGNATURE, fastmath=_FASTMATH, nogil=True, cache=True)(function)
    except RuntimeError:  # there is no directory to keep it in
        return numba.njit(_SIGNATURE, fastmath=_FASTMATH, nogil=True)(function)


@numba.njit(fastmath=_FASTMATH)
def _score(queries_GD: np.ndarray, keys_LD: np.ndarray, scores_GL: np.ndarray) -> None:
    """Products of all queries with all keys; four keys at once, so that a query is read once for four."""
    length, head_size = keys_LD.shape
    in_fours = length - length % 4
    for p in range(0, in_fours, 4):
        for g in range(len(queries_GD)):
            s0 = s1 = s2 = s3 = _ZERO
            for d in range(head_size):
                query = queries_GD[g, d]
                s0 += query * keys_LD[p, d]
                s1 += query * keys_LD[p + 1, d]
                s2 += query * keys_LD[p + 2, d]
                s3 += query * keys_LD[p + 3, d]
            scores_GL[g, p], scores_GL[g, p + 1], scores_GL[g, p + 2], scores_GL[g, p + 3] = s0, s1, s2, s3
    for p in range(in_fours, length):
        for g in range(len(queries_GD)):
            s0 = _ZERO
            for d in range(head_size):
                s0 += queries_GD[g, d] * keys_LD[p, d]
            scores_GL[g, p] = s0


@numba.njit(fastmath=_FASTMATH)
def _softmax(scores_L: np.ndarray, exponents_L: np.ndarray) -> None:
    """In place; `exponents_L` is scratch. Undefined if a score is not finite."""
    powers_L = exponents_L.view(np.float32)  # 2 to the exponents, whose bits are written there
    largest, total = scores_L[0], _ZERO
    for p in range(len(scores_L)):
        largest = max(largest, scores_L[p])
        total += scores_L[p] * _ZERO  # stays 0 unless it is infinite or undefined
    # exp(x) = 2^n exp(y) with y below ln(2) / 2 in size: a series, which vector units can compute.
    for p in range(len(scores_L)):
        x = max(scores_L[p] - largest, _LOWEST)
        n = np.floor(x * _LOG2_E + _HALF)
        y = x - n * _LN_2
        scores_L[p] = _ONE + y * (_ONE + y * (_E2 + y * (_E3 + y * (_E4 + y * (_E5 + y * _E6)))))
        exponents_L[p] = (np.int32(n) + _EXPONENT_BIAS) << _MANTISSA_BITS
    for p in range(len(scores_L)):
        scores_L[p] *= powers_L[p]
        total += scores_L[p]
    for p in range(len(scores_L)):
        scores_L[p] /= total


@numba.njit(fastmath=_FASTMATH)
def _mix(weights_GL: np.ndarray, values_LD: np.ndarray, mixed_GD: np.ndarray) -> None:
    """Weighted sums of the values; four values at once, so that a sum is written once for four."""
    length, head_size = values_LD.shape
    in_fours = length - length % 4
    mixed_GD[:] = _ZERO
    for p in range(0, in_fours, 4):
        for g in range(len(mixed_GD)):
            w0, w1, w2, w3 = weights_GL[g, p], weights_GL[g, p + 1], weights_GL[g, p + 2], weights_GL[g, p + 3]
            for d in range(head_size):
                first_two = w0 * values_LD[p, d] + w1 * values_LD[p + 1, d]
                mixed_GD[g, d] += first_two + w2 * values_LD[p + 2, d] + w3 * values_LD[p + 3, d]
    for p in range(in_fours, length):
        for g in range(len(mixed_GD)):
            for d in range(head_size):
                mixed_GD[g, d] += weights_GL[g, p] * values_LD[p, d]


@_compiled
def _attend(
    cache_2SKLD: np.ndarray,
    q_RHD: np.ndarray,
    k_RKD: np.ndarray,
    v_RKD: np.ndarray,
    slots_R: np.ndarray,
    positions_R: np.ndarray,
    attended_RHD: np.ndarray,
) -> None:
    """Put the new keys and values into the cache, and attend to all that each row has there."""
    num_kv_heads, head_size = k_RKD.shape[1:]
    num_shared = q_RHD.shape[1] // num_kv_heads
    scale = np.float32(1 / math.sqrt(head_size))
    longest = positions_R.max() + 1
    queries_GD = np.empty((num_shared, head_size), dtype=np.float32)
    weights_GL = np.empty((num_shared, longest), dtype=np.float32)
    exponents_L = np.empty(longest, dtype=np.int32)
    for row in range(len(slots_R)):
        length = positions_R[row] + 1
        for head in range(num_kv_heads):
            keys_LD = cache_2SKLD[0, slots_R[row], head, :length]
            values_LD = cache_2SKLD[1, slots_R[row], head, :length]
            keys_LD[-1], values_LD[-1] = k_RKD[row, head], v_RKD[row, head]
            members = slice(head * num_shared, (head + 1) * num_shared)
            np.multiply(q_RHD[row, members], scale, queries_GD)
            _score(queries_GD, keys_LD, weights_GL)
            for g in range(num_shared):
                _softmax(weights_GL[g, :length], exponents_L[:length])
            _mix(weights_GL, values_LD, attended_RHD[row, members])
