"""Attention of one new token in each of many cached sequences, whose lengths differ.

    slot 0  ████████
    slot 1  ██████████              one product over a slice of the cache, `num_shared` positions wide,
    slot 2  ███████                 what a row has not reached yet is masked
    slot 3  █████████████████████████████████████        too long for the slice: a product of its own
    slot 4  ██████
            └─num_shared─┘

One product as wide as the longest sequence would make everybody pay for it, and lengths have long tails; one
product for each sequence would pay for the calls. `_choose_alone` takes the cheapest mixture. The cache is never
gathered or copied: a slot inside the slice that does not decode in this step is computed along and thrown away.

Shapes: S slots, R decode rows, K key/value heads, G query heads of each, H = K G, L positions, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

CALL_POSITIONS = 200
"""What the calls for one more product cost, in cached positions read."""


class DecodeAttention:
    """Who decodes in this step and how far each sees; called once for each layer."""

    def __init__(self, cache_SKLD: Tensor, slots: Sequence[int], positions: Sequence[int]) -> None:
        device = cache_SKLD.device
        _, num_kv_heads, slot_tokens, self._head_size = cache_SKLD.shape
        slots_R, positions_R = np.array(slots), np.array(positions)
        heads_RK = slots_R[:, None] * num_kv_heads + np.arange(num_kv_heads)
        # Where the new keys and values go in the cache seen as a list of vectors.
        self._places_E = torch.from_numpy((heads_RK * slot_tokens + positions_R[:, None]).ravel()).to(device)
        self._num_slots = int(slots_R.max()) + 1
        self._is_slice = self._num_slots == len(slots)
        alone_R = _choose_alone(positions_R + 1, self._num_slots)
        self._alone = [(row, slots[row], positions[row] + 1) for row in np.flatnonzero(alone_R).tolist()]
        self._num_shared = int((positions_R[~alone_R] + 1).max(initial=0))
        if self._num_shared:
            self._slots_R = torch.from_numpy(slots_R).to(device)
            # A row without a sequence, or with one that has a product of its own, sees position 0: no NaN arises.
            seen_S = np.zeros(self._num_slots, dtype=np.int64)
            seen_S[slots_R] = positions_R
            visible_SL = np.arange(self._num_shared) <= seen_S[:, None]
            mask_SL = torch.from_numpy(np.where(visible_SL, np.float32(0), np.float32(-np.inf)))
            self._mask_S11L = mask_SL.to(device, cache_SKLD.dtype)[:, None, None]

    def __call__(
        self, keys_SKLD: Tensor, values_SKLD: Tensor, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor
    ) -> Tensor:
        keys_SKLD.view(-1, self._head_size).index_copy_(0, self._places_E, k_RKD.reshape(-1, self._head_size))
        values_SKLD.view(-1, self._head_size).index_copy_(0, self._places_E, v_RKD.reshape(-1, self._head_size))
        # The query heads that share a key head stand where query positions usually stand: no key is repeated.
        q_RKGD = q_RHD.reshape(len(q_RHD), k_RKD.shape[1], -1, self._head_size)
        attended_RKGD = self._attend_shared(q_RKGD, keys_SKLD, values_SKLD)
        for row, slot, length in self._alone:
            keys_1KLD, values_1KLD = (x[slot, :, :length][None] for x in (keys_SKLD, values_SKLD))
            attended_RKGD[row] = F.scaled_dot_product_attention(q_RKGD[row][None], keys_1KLD, values_1KLD)[0]
        return attended_RKGD.reshape(q_RHD.shape)

    def _attend_shared(self, q_RKGD: Tensor, keys_SKLD: Tensor, values_SKLD: Tensor) -> Tensor:
        if not self._num_shared:
            return torch.empty_like(q_RKGD)
        q_SKGD = q_RKGD
        if not self._is_slice:
            q_SKGD = q_RKGD.new_zeros((self._num_slots, *q_RKGD.shape[1:])).index_copy_(0, self._slots_R, q_RKGD)
        attended_SKGD = F.scaled_dot_product_attention(
            q_SKGD,
            keys_SKLD[: self._num_slots, :, : self._num_shared],
            values_SKLD[: self._num_slots, :, : self._num_shared],
            attn_mask=self._mask_S11L,
        )
        return attended_SKGD if self._is_slice else attended_SKGD[self._slots_R]


def _choose_alone(lengths_R: np.ndarray, num_slots: int) -> np.ndarray:
    """Which rows get a product of their own, so that all together read the fewest positions."""
    longest_first = np.argsort(-lengths_R, kind="stable")
    sorted_R = lengths_R[longest_first]
    # Of the first n rows alone, for n = 0 to R; the slice is then as wide as the longest of the others.
    costs_alone = np.concatenate(([0], np.cumsum(sorted_R + CALL_POSITIONS)))
    costs_slice = num_slots * np.append(sorted_R, 0)
    num_alone = int(np.argmin(costs_alone + costs_slice))
    alone_R = np.zeros(len(lengths_R), dtype=bool)
    alone_R[longest_first[:num_alone]] = True
    return alone_R
