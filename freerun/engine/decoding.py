"""Attention of one new token in each of many cached sequences of different lengths, with torch's kernels.

For GPUs and bfloat16. In float32 on a CPU, `decode_kernel.py` is used instead.

    slot 0  ████████
    slot 1  ██████████              one product over a slice of the cache, `num_shared` positions wide;
    slot 2  ███████                 positions that a row has not reached are masked
    slot 3  █████████████████████████████████████        too long for the slice: a separate product
    slot 4  ██████
            └─num_shared─┘

One product as wide as the longest sequence would make every row pay for the long tail; one product per sequence
would pay for the calls. `_choose_alone` finds the cheapest mixture. The cache is never gathered or copied: a slot
in the slice that does not decode in this step is computed too, and its result ignored.

Shapes: S slots, R decode rows, K key/value heads, G query heads of each, H = K G, X = S K, L positions, D head
size; 2 stands for keys and values.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

CALL_POSITIONS = 200
"""Cost of the calls for one more product, expressed in cached positions read; an estimate."""


class DecodeAttention:
    """The rows of this step and their lengths; called once per layer."""

    def __init__(self, cache_2SKLD: Tensor, slots: Sequence[int], positions: Sequence[int]) -> None:
        device = cache_2SKLD.device
        _, all_slots, num_kv_heads, slot_tokens, self._head_size = cache_2SKLD.shape
        slots_R, positions_R = np.array(slots), np.array(positions)
        heads_RK = slots_R[:, None] * num_kv_heads + np.arange(num_kv_heads)
        # Where the new keys go if the cache is seen as a list of vectors; the values come after all keys.
        places_E = (heads_RK * slot_tokens + positions_R[:, None]).ravel()
        places_2E = np.concatenate((places_E, places_E + all_slots * num_kv_heads * slot_tokens))
        self._places_2E = torch.from_numpy(places_2E).to(device)
        self._num_slots = max(slots) + 1
        self._is_slice = self._num_slots == len(slots)
        self._slots_R = torch.from_numpy(slots_R).to(device)
        alone = _choose_alone(positions_R + 1, self._num_slots)
        self._alone = [(row, slots[row], positions[row] + 1) for row in alone.tolist()]
        shared_R = np.delete(positions_R, alone) + 1
        self._num_shared = int(shared_R.max(initial=0))
        self._mask_S1L: Tensor | None = None
        if not self._is_slice or self._alone or shared_R.min(initial=self._num_shared) < self._num_shared:
            self._mask_S1L = self._mask(slots_R, positions_R, num_kv_heads).to(device, cache_2SKLD.dtype)

    def _mask(self, slots_R: np.ndarray, positions_R: np.ndarray, num_kv_heads: int) -> Tensor:
        # A slot that does not decode sees position 0, a longer one the whole slice: a fully masked row gives NaN.
        seen_S = np.zeros(self._num_slots, dtype=np.int64)
        seen_S[slots_R] = positions_R
        visible_SL = np.arange(self._num_shared) <= seen_S.repeat(num_kv_heads)[:, None]
        return torch.from_numpy(np.where(visible_SL, np.float32(0), np.float32(-np.inf)))[:, None]

    def __call__(self, cache_2SKLD: Tensor, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        new_2RKD = torch.stack((k_RKD, v_RKD))
        cache_2SKLD.view(-1, self._head_size).index_copy_(0, self._places_2E, new_2RKD.view(-1, self._head_size))
        # Query heads that share a key head take the place of query positions, so no key is repeated.
        q_RKGD = q_RHD.reshape(len(q_RHD), k_RKD.shape[1], -1, self._head_size)
        attended_RKGD = self._attend_shared(q_RKGD, cache_2SKLD)
        for row, slot, length in self._alone:
            keys_1KLD, values_1KLD = cache_2SKLD[:, slot, None, :, :length]
            attended_RKGD[row] = F.scaled_dot_product_attention(q_RKGD[row][None], keys_1KLD, values_1KLD)[0]
        return attended_RKGD.reshape(q_RHD.shape)

    def _attend_shared(self, q_RKGD: Tensor, cache_2SKLD: Tensor) -> Tensor:
        if not self._num_shared:
            return torch.empty_like(q_RKGD)
        q_SKGD = q_RKGD
        if not self._is_slice:
            q_SKGD = q_RKGD.new_zeros((self._num_slots, *q_RKGD.shape[1:])).index_copy_(0, self._slots_R, q_RKGD)
        keys_XLD, values_XLD = cache_2SKLD[:, : self._num_slots, :, : self._num_shared].flatten(1, 2)
        attended_XGD = F.scaled_dot_product_attention(
            q_SKGD.flatten(0, 1), keys_XLD, values_XLD, attn_mask=self._mask_S1L
        )
        attended_SKGD = attended_XGD.view(q_SKGD.shape)
        return attended_SKGD if self._is_slice else attended_SKGD[self._slots_R]


def _choose_alone(lengths_R: np.ndarray, num_slots: int) -> np.ndarray:
    """The rows that get a separate product, chosen to read the fewest positions overall."""
    if num_slots * (lengths_R.max() - lengths_R.min()) < CALL_POSITIONS and num_slots == len(lengths_R):
        return np.empty(0, dtype=np.int64)  # fast path for the usual case: too little to gain
    longest_first = np.argsort(-lengths_R, kind="stable")
    sorted_R = lengths_R[longest_first]
    # Costs with the longest n rows alone, n = 0 to R; the slice is then as wide as the longest of the others.
    costs_alone = np.concatenate(([0], np.cumsum(sorted_R + CALL_POSITIONS)))
    costs_slice = num_slots * np.append(sorted_R, 0)
    return longest_first[: np.argmin(costs_alone + costs_slice)]
