"""The KV cache: one slot per live sequence; live slots always come first.

Live slots stay contiguous (the last one moves into a freed slot), so decoding attends over a plain slice of the
cache, without gathering (`decoding.py`). Memory is reserved for every slot at full length but touched only as
sequences grow.

Shapes: N layers, 2 keys and values, S slots, K key/value heads, L positions, D head size, H query heads, T packed
tokens.
"""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.engine.decode_kernel import CompiledDecodeAttention, can_compile_for
from freerun.engine.decoding import DecodeAttention
from freerun.model.decoder_config import DecoderConfig


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
        shape = (config.num_layers, 2, num_slots, config.num_kv_heads, slot_tokens, config.head_size)
        self._all_N2SKLD = _untouched_zeros(shape, device, dtype)
        self.layers_2SKLD = self._all_N2SKLD.unbind(0)

    def copy(self, *, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` positions of one slot to another."""
        self._all_N2SKLD[:, :, target, :, :num_tokens] = self._all_N2SKLD[:, :, source, :, :num_tokens]

    def copy_out(self, slot: int, *, num_tokens: int) -> Tensor:
        """A copy of the first `num_tokens` positions of a slot, in separate memory."""
        return self._all_N2SKLD[:, :, slot, :, :num_tokens].clone(memory_format=torch.contiguous_format)

    def copy_in(self, slot: int, cached_N2KLD: Tensor) -> None:
        """Write what was copied out to the first positions of a slot."""
        self._all_N2SKLD[:, :, slot, :, : cached_N2KLD.shape[3]] = cached_N2KLD


def _untouched_zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros: a masked position still enters the product, and garbage may be NaN."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    # Pages that the kernel zeroes on first touch, and small ones: a partly used slot would occupy whole huge
    # pages. torch.zeros writes all pages, numpy.zeros asks for huge ones.
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


@dataclass(frozen=True)
class PrefillChunk:
    """Positions start to end of the sequence in `slot` are computed in this step."""

    slot: int
    start: int
    end: int


class CachedAttention:
    """Attention of one step: first a row for each decoding slot, then the prefill chunks, all packed.

    `prompts` gives for each row a slot with the same prompt, and its length there (`decode_kernel.py`). Rows
    behind these are padding, which attends to nothing.
    """

    def __init__(
        self,
        cache: KVCache,
        decode_slots: Sequence[int],
        decode_positions: Sequence[int],
        prompts: Sequence[tuple[int, int]],
        chunks: Sequence[PrefillChunk],
    ) -> None:
        self.cache = cache
        self.chunks = chunks
        self.num_decodes = len(decode_slots)
        self.num_rows = self.num_decodes + sum(chunk.end - chunk.start for chunk in chunks)
        if decode_slots:
            layer_2SKLD = cache.layers_2SKLD[0]
            self._decode: DecodeAttention | CompiledDecodeAttention = (
                CompiledDecodeAttention(layer_2SKLD, decode_slots, decode_positions, prompts)
                if can_compile_for(layer_2SKLD)
                else DecodeAttention(layer_2SKLD, decode_slots, decode_positions)
            )

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        num_padding = len(q_THD) - self.num_rows
        if not num_padding:
            return self._attend(layer, q_THD, k_TKD, v_TKD)
        attended_THD = self._attend(layer, *(x[: self.num_rows] for x in (q_THD, k_TKD, v_TKD)))
        return F.pad(attended_THD, (0, 0, 0, 0, 0, num_padding))

    def _attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        cache_2SKLD = self.cache.layers_2SKLD[layer]
        if not self.chunks:
            return self._decode(cache_2SKLD, q_THD, k_TKD, v_TKD)
        parts = []
        begin = self.num_decodes
        if begin:
            parts.append(self._decode(cache_2SKLD, q_THD[:begin], k_TKD[:begin], v_TKD[:begin]))
        for chunk in self.chunks:
            end = begin + chunk.end - chunk.start
            parts.append(self._prefill(layer, chunk, q_THD[begin:end], k_TKD[begin:end], v_TKD[begin:end]))
            begin = end
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _prefill(self, layer: int, chunk: PrefillChunk, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        keys_KLD, values_KLD = self.cache.layers_2SKLD[layer][:, chunk.slot]
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
