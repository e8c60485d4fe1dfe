"""Attention of one new token in each of many cached sequences, compiled for this processor.

Each sequence is read once, up to its length: no mask, no padding, and a row's result does not depend on the rest
of the batch. With three or four queries per key head, torch's batched products are mostly overhead; this takes
half of their time or less.

Samples with the same prompt hold it in their slots. It is read from one slot for all of them, head by head, so all
but the first find it in the processor's cache. Then each row's own tokens are read.

    slot 3   prompt ████████  own ███          a row's result is that of the two parts one after the other,
    slot 5         ────┘      own █████        no matter which slot the prompt is read from
    slot 8         ────┘      own ██

Sums may be reordered for vector units, but infinities and NaNs are preserved: a non-finite score gives NaN, as in
torch, and the sampler detects it.

Threads divide the rows by the amount to read. Compiling takes seconds, once per machine: numba caches the result
beside this file.

Shapes: S slots, R decode rows, K key/value heads, G query heads of each, H = K G, L positions, D head size; 2
stands for keys and values, 5 for the fields that locate a row.
"""

import math
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

MIN_SHARE = 2**19
"""Numbers that a thread must read per layer before waking it pays off; an estimate."""

_HELPERS = ThreadPoolExecutor(thread_name_prefix="attention")

_SIGNATURE = numba.void(
    numba.int64[:, ::1],
    numba.float32[:, :, :, :, ::1],
    numba.float32[:, :, :],
    numba.float32[:, :, :],
    numba.float32[:, :, :],
    numba.float32[:, :, ::1],
)
# Literals would be float64, and only half as many fit into a register.
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LOG2_E, _LN_2 = np.float32(math.log2(math.e)), np.float32(math.log(2))
_LOWEST = np.float32(-87)
"""exp of a smaller argument is not a normal number."""
_E2, _E3, _E4, _E5, _E6 = (np.float32(1 / math.factorial(n)) for n in range(2, 7))
_EXPONENT_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)


def can_compile_for(cache_2SKLD: Tensor) -> bool:
    return cache_2SKLD.device.type == "cpu" and cache_2SKLD.dtype == torch.float32


class CompiledDecodeAttention:
    """The rows of this step and their lengths; called once per layer.

    `prompts` gives for each row a slot whose first positions equal its own, and how many. Rows with the same
    slot and number read these positions together.
    """

    def __init__(
        self,
        cache_2SKLD: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        prompts: Sequence[tuple[int, int]],
    ) -> None:
        _, num_slots, num_kv_heads, slot_tokens, head_size = cache_2SKLD.shape
        lenders, lent = zip(*prompts, strict=True)
        # The compiled code does not check bounds.
        assert 0 <= min(*slots, *lenders) <= max(*slots, *lenders) < num_slots, (
            f"{slots}, {lenders} of {num_slots}"
        )
        assert min(lent) >= 0, f"prompts of {lent}"
        assert max(positions) < slot_tokens, f"positions {positions} of {slot_tokens}"
        assert all(map(operator.le, lent, positions)), f"prompts of {lent}, positions {positions}"
        rows = sorted(range(len(slots)), key=lenders.__getitem__)
        places_R5 = np.array([(row, slots[row], positions[row], lenders[row], lent[row]) for row in rows])
        ends_R = np.cumsum(places_R5[:, 2] + 1)
        num_read = int(ends_R[-1]) * 2 * num_kv_heads * head_size
        num_threads = max(1, min(torch.get_num_threads(), num_read // MIN_SHARE))
        bounds = np.searchsorted(ends_R, ends_R[-1] * np.arange(1, num_threads) // num_threads)
        self._shares = [places_R5[slice(*pair)] for pair in pairwise(sorted({0, *bounds.tolist(), len(slots)}))]

    def __call__(self, cache_2SKLD: Tensor, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        attended_RHD = torch.empty(q_RHD.shape)
        arrays = cache_2SKLD.numpy(), q_RHD.numpy(), k_RKD.numpy(), v_RKD.numpy(), attended_RHD.numpy()
        own, *others = self._shares
        helping = [_HELPERS.submit(_attend, share, *arrays) for share in others]
        _attend(own, *arrays)
        for helper in helping:
            helper.result()
        return attended_RHD


_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
"""The assumptions that numba may make; that all numbers are finite is not one of them."""


def _compiled(function: Callable[..., None]) -> Any:
    try:
        return numba.njit(_SIGNATURE, fastmath=_FASTMATH, nogil=True, cache=True)(function)
    except RuntimeError:  # there is no directory to cache the compiled code in
        return numba.njit(_SIGNATURE, fastmath=_FASTMATH, nogil=True)(function)


@numba.njit(fastmath=_FASTMATH)
def _score(queries_GD: np.ndarray, keys_LD: np.ndarray, scores_GL: np.ndarray, begin: int) -> None:
    """Products of all queries with all keys, from column `begin` on; a query is read once per four keys."""
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
            four = scores_GL[g, begin + p : begin + p + 4]
            four[0], four[1], four[2], four[3] = s0, s1, s2, s3
    for p in range(in_fours, length):
        for g in range(len(queries_GD)):
            s0 = _ZERO
            for d in range(head_size):
                s0 += queries_GD[g, d] * keys_LD[p, d]
            scores_GL[g, begin + p] = s0


@numba.njit(fastmath=_FASTMATH)
def _softmax(scores_L: np.ndarray, exponents_L: np.ndarray) -> None:
    """Softmax in place; `exponents_L` is scratch space. The result is undefined if a score is not finite."""
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
def _mix(weights_GL: np.ndarray, begin: int, values_LD: np.ndarray, mixed_GD: np.ndarray) -> None:
    """Add the values, weighted by the columns from `begin` on.

    Four values are added at a time, so that a sum is written once for four.
    """
    length, head_size = values_LD.shape
    in_fours = length - length % 4
    for p in range(0, in_fours, 4):
        for g in range(len(mixed_GD)):
            four = weights_GL[g, begin + p : begin + p + 4]
            w0, w1, w2, w3 = four[0], four[1], four[2], four[3]
            for d in range(head_size):
                first_two = w0 * values_LD[p, d] + w1 * values_LD[p + 1, d]
                mixed_GD[g, d] += first_two + w2 * values_LD[p + 2, d] + w3 * values_LD[p + 3, d]
    for p in range(in_fours, length):
        for g in range(len(mixed_GD)):
            for d in range(head_size):
                mixed_GD[g, d] += weights_GL[g, begin + p] * values_LD[p, d]


@_compiled
def _attend(
    places_R5: np.ndarray,
    cache_2SKLD: np.ndarray,
    q_RHD: np.ndarray,
    k_RKD: np.ndarray,
    v_RKD: np.ndarray,
    attended_RHD: np.ndarray,
) -> None:
    """Write the new keys and values into the cache, then attend to all cached positions of each row.

    A place gives a row, its slot and position, the slot to read its prompt from, and the length of that prompt.
    """
    num_kv_heads, head_size = k_RKD.shape[1:]
    num_shared = q_RHD.shape[1] // num_kv_heads
    scale = np.float32(1 / math.sqrt(head_size))
    longest = places_R5[:, 2].max() + 1
    queries_GD = np.empty((num_shared, head_size), dtype=np.float32)
    weights_GL = np.empty((num_shared, longest), dtype=np.float32)
    exponents_L = np.empty(longest, dtype=np.int32)
    begin = 0
    while begin < len(places_R5):
        lender, num_lent = places_R5[begin, 3], places_R5[begin, 4]
        end = begin
        while end < len(places_R5) and places_R5[end, 3] == lender and places_R5[end, 4] == num_lent:
            end += 1
        for head in range(num_kv_heads):
            members = slice(head * num_shared, (head + 1) * num_shared)
            lent_keys_LD = cache_2SKLD[0, lender, head, :num_lent]
            lent_values_LD = cache_2SKLD[1, lender, head, :num_lent]
            for place in range(begin, end):
                row, slot, position = places_R5[place, 0], places_R5[place, 1], places_R5[place, 2]
                keys_LD = cache_2SKLD[0, slot, head, num_lent : position + 1]
                values_LD = cache_2SKLD[1, slot, head, num_lent : position + 1]
                keys_LD[-1], values_LD[-1] = k_RKD[row, head], v_RKD[row, head]
                np.multiply(q_RHD[row, members], scale, queries_GD)
                _score(queries_GD, lent_keys_LD, weights_GL, 0)
                _score(queries_GD, keys_LD, weights_GL, num_lent)
                for g in range(num_shared):
                    _softmax(weights_GL[g, : position + 1], exponents_L[: position + 1])
                mixed_GD = attended_RHD[row, members]
                mixed_GD[:] = _ZERO
                _mix(weights_GL, 0, lent_values_LD, mixed_GD)
                _mix(weights_GL, num_lent, values_LD, mixed_GD)
        begin = end
