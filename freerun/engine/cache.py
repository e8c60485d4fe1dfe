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

import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.engine.decode_kernel import CompiledDecodeAttention, can_compile_for
from freerun.engine.decoding import DecodeAttention
from freerun.engine.prefill import PrefillAttention, PrefillChunk, TiledPrefillAttention
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

    def copy_out(self, slot: int, *, begin: int, end: int) -> Tensor:
        """A copy of these positions of a slot, in separate memory."""
        return self._all_N2SKLD[:, :, slot, :, begin:end].clone(memory_format=torch.contiguous_format)

    def copy_in(self, slot: int, cached_N2KLD: Tensor, *, begin: int) -> None:
        """Write what `copy_out` returned to the positions of a slot from `begin` on."""
        self._all_N2SKLD[:, :, slot, :, begin : begin + cached_N2KLD.shape[3]] = cached_N2KLD


def _untouched_zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeroed memory: a masked position still enters the product, and garbage may be NaN."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    # Small pages, which the kernel zeroes on first touch: with huge pages a partly used slot would occupy whole
    # ones. torch.zeros writes all pages, numpy.zeros asks for huge ones.
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class CachedAttention:
    """Attention of one step, packed: first one row per decoding slot, then the prefill chunks.

    `prompts` gives for each row a slot with the same prompt, and the prompt's length there
    (`decode_kernel.py`). Rows after these are padding, which attends to nothing. A row may decode the token
    that follows a chunk of its own
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
        self.num_decodes = len(decode_slots)
        self._lengths = [chunk.end - chunk.start for chunk in chunks]
        self.num_rows = self.num_decodes + sum(self._lengths)
        layer_2SKLD = cache.layers_2SKLD[0]
        is_steady = can_compile_for(layer_2SKLD)
        self._prefills: list[PrefillAttention | TiledPrefillAttention] = [
            TiledPrefillAttention(layer_2SKLD, chunk) if is_steady else PrefillAttention(layer_2SKLD, chunk)
            for chunk in chunks
        ]
        if decode_slots:
            self._decode: DecodeAttention | CompiledDecodeAttention = (
                CompiledDecodeAttention(layer_2SKLD, decode_slots, decode_positions, prompts)
                if is_steady
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
        if not self._prefills:
            return self._decode(cache_2SKLD, q_THD, k_TKD, v_TKD)
        decode, *chunks = zip(
            *(x.split([self.num_decodes, *self._lengths]) for x in (q_THD, k_TKD, v_TKD)), strict=True
        )
        # Before the decodes, some of which read what these write.
        parts = [prefill(cache_2SKLD, *chunk) for prefill, chunk in zip(self._prefills, chunks, strict=True)]
        if self.num_decodes:
            parts.insert(0, self._decode(cache_2SKLD, *decode))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
