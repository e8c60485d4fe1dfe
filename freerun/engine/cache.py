"""The KV cache: one slot per live sequence, live slots always the first ones.

Because live slots are kept together (a finished sequence's slot is filled by the last one), decoding
attends over a plain slice of the cache, without gathering. Memory is reserved for every slot at full
length but touched only as sequences grow.

Shapes: S slots, K key/value heads, L positions, D head size, H query heads, T packed tokens, R decode rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.model.decoder import DecoderConfig


class KVCache:
    """Keys and values of every layer, by slot and position."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        num_slots: int,
        slot_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.device = device
        self.dtype = dtype
        # Zeroed, not empty: a masked position still enters the product, and garbage may be NaN.
        shape = (num_slots, config.num_kv_heads, slot_tokens, config.head_size)
        self.keys_SKLD = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        self.values_SKLD = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]

    def copy(self, *, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` positions of one slot to another."""
        for cache_SKLD in (*self.keys_SKLD, *self.values_SKLD):
            cache_SKLD[target, :, :num_tokens] = cache_SKLD[source, :, :num_tokens]


@dataclass(frozen=True)
class PrefillChunk:
    """Positions start to end of the sequence in `slot` are computed in this step."""

    slot: int
    start: int
    end: int


class CachedAttention:
    """Attention of one step: first a row for each decoding slot, then the prefill chunks, all packed."""

    def __init__(
        self, cache: KVCache, decode_slots: list[int], decode_positions: list[int], chunks: list[PrefillChunk]
    ) -> None:
        self.cache = cache
        self.chunks = chunks
        self.num_decodes = len(decode_slots)
        if decode_slots:
            device = cache.device
            self.slots_R = torch.tensor(decode_slots, device=device)
            self.positions_R = torch.tensor(decode_positions, device=device)
            self.num_positions = max(decode_positions) + 1
            visible_RL = torch.arange(self.num_positions, device=device) <= self.positions_R[:, None]
            mask_RL = torch.zeros(visible_RL.shape, device=device, dtype=cache.dtype)
            self.mask_R11L = mask_RL.masked_fill_(~visible_RL, -torch.inf)[:, None, None]
            # The usual case, nothing in prefill: the decoding slots are the first R, no gathering needed.
            self.is_prefix = decode_slots == list(range(len(decode_slots)))

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        parts = []
        begin = self.num_decodes
        if begin:
            parts.append(self._decode(layer, q_THD[:begin], k_TKD[:begin], v_TKD[:begin]))
        for chunk in self.chunks:
            end = begin + chunk.end - chunk.start
            parts.append(self._prefill(layer, chunk, q_THD[begin:end], k_TKD[begin:end], v_TKD[begin:end]))
            begin = end
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        keys_SKLD, values_SKLD = self.cache.keys_SKLD[layer], self.cache.values_SKLD[layer]
        keys_SKLD[self.slots_R, :, self.positions_R] = k_RKD
        values_SKLD[self.slots_R, :, self.positions_R] = v_RKD
        rows = slice(0, self.num_decodes) if self.is_prefix else self.slots_R
        num_rows, num_kv_heads, head_size = k_RKD.shape
        # The query heads that share a key head stand where query positions usually stand: no key is repeated.
        attended = F.scaled_dot_product_attention(
            q_RHD.reshape(num_rows, num_kv_heads, -1, head_size),
            keys_SKLD[:, :, : self.num_positions][rows],
            values_SKLD[:, :, : self.num_positions][rows],
            attn_mask=self.mask_R11L,
        )
        return attended.reshape(q_RHD.shape)

    def _prefill(self, layer: int, chunk: PrefillChunk, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys_KLD = self.cache.keys_SKLD[layer][chunk.slot]
        values_KLD = self.cache.values_SKLD[layer][chunk.slot]
        keys_KLD[:, chunk.start : chunk.end] = k_TKD.transpose(0, 1)
        values_KLD[:, chunk.start : chunk.end] = v_TKD.transpose(0, 1)
        mask_TL = None
        if chunk.start > 0:
            positions_L = torch.arange(chunk.end, device=self.cache.device)
            mask_TL = positions_L <= positions_L[chunk.start :, None]
        attended_1HTD = F.scaled_dot_product_attention(
            q_THD.transpose(0, 1)[None],
            keys_KLD[None, :, : chunk.end],
            values_KLD[None, :, : chunk.end],
            attn_mask=mask_TL,
            is_causal=mask_TL is None,
            enable_gqa=q_THD.shape[1] != k_TKD.shape[1],
        )
        return attended_1HTD[0].transpose(0, 1)
