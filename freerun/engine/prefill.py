"""Attention of consecutive new tokens of one cached sequence: a prompt, a recomputed cache, or a part of one.

    positions   0        32       64       96    float32 on a CPU: queries attend in tiles at fixed positions;
    chunk             ├───────────────┤          a tile that the chunk does not fill is filled with zeros
    tiles       ├────────┼────────┼────────┤

The order in which a kernel adds up depends on the numbers of queries and keys. Where a chunk begins and ends
depends on what else the step computes, and on which sample of the group computes the prompt. A tile always has
the same numbers, so a row has the same bits in every chunk. On other devices decoding does not promise this
either, so there a chunk is one call.

Shapes: T new tokens, H query heads, K key/value heads, L positions of a slot, D head size; 2 stands for keys and
values.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 32
"""Queries per tile; torch's CPU kernel also takes this many at a time."""


@dataclass(frozen=True)
class PrefillChunk:
    """Positions start to end of the sequence in `slot` are computed in this step."""

    slot: int
    start: int
    end: int


class PrefillAttention:
    """Attention of the chunk in one call; called once per layer."""

    def __init__(self, cache_2SKLD: Tensor, chunk: PrefillChunk) -> None:
        self._chunk = chunk
        self._mask_TL: Tensor | None = None
        if chunk.start > 0:
            positions_L = torch.arange(chunk.end, device=cache_2SKLD.device)
            self._mask_TL = positions_L <= positions_L[chunk.start :, None]

    def __call__(self, cache_2SKLD: Tensor, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        slot_2KLD = _write(cache_2SKLD, self._chunk, k_TKD, v_TKD)
        return _attend(q_THD, slot_2KLD[:, :, : self._chunk.end], self._mask_TL)


class TiledPrefillAttention:
    """Attention of the chunk tile by tile; called once per layer."""

    def __init__(self, cache_2SKLD: Tensor, chunk: PrefillChunk) -> None:
        self._chunk = chunk
        slot_tokens = cache_2SKLD.shape[3]
        first = chunk.start - chunk.start % TILE
        self._tiles = [
            (begin - first, min(begin + TILE, slot_tokens), _tile_mask(begin, min(begin + TILE, slot_tokens)))
            for begin in range(first, chunk.end, TILE)
        ]
        self._before = chunk.start - first
        self._behind = len(self._tiles) * TILE - self._before - (chunk.end - chunk.start)

    def __call__(self, cache_2SKLD: Tensor, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        slot_2KLD = _write(cache_2SKLD, self._chunk, k_TKD, v_TKD)
        # Clear what a longer sequence left behind: it has no weight, but NaN times zero is NaN.
        slot_2KLD[:, :, self._chunk.end : self._tiles[-1][1]] = 0
        padded_THD = F.pad(q_THD, (0, 0, 0, 0, self._before, self._behind))
        parts = [
            _attend(padded_THD[begin : begin + TILE], slot_2KLD[:, :, :num_keys], mask_TL)
            for begin, num_keys, mask_TL in self._tiles
        ]
        attended_THD = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended_THD[self._before : len(attended_THD) - self._behind]


def _write(cache_2SKLD: Tensor, chunk: PrefillChunk, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
    """Write the new keys and values; returns a view of the whole slot."""
    slot_2KLD = cache_2SKLD[:, chunk.slot]
    slot_2KLD[0, :, chunk.start : chunk.end] = k_TKD.transpose(0, 1)
    slot_2KLD[1, :, chunk.start : chunk.end] = v_TKD.transpose(0, 1)
    return slot_2KLD


@lru_cache(maxsize=8)
def _tile_mask(begin: int, num_keys: int) -> Tensor:
    """The mask of a tile as floats; the kernel would convert a boolean mask in every layer.

    It is kept because the turns of many sessions have tiles at the same positions.
    """
    positions_T, positions_L = torch.arange(begin, begin + TILE), torch.arange(num_keys)
    return torch.zeros(TILE, num_keys).masked_fill_(positions_L > positions_T[:, None], -torch.inf)


def _attend(q_THD: Tensor, cached_2KLD: Tensor, mask_TL: Tensor | None) -> Tensor:
    """Without a mask, attention is causal and the queries are at the first positions."""
    keys_1KLD, values_1KLD = cached_2KLD[:, None]
    attended_1HTD = F.scaled_dot_product_attention(
        q_THD.transpose(0, 1)[None],
        keys_1KLD,
        values_1KLD,
        attn_mask=mask_TL,
        is_causal=mask_TL is None,
        enable_gqa=q_THD.shape[1] != keys_1KLD.shape[1],
    )
    return attended_1HTD[0].transpose(0, 1)
