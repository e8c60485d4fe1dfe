"""One decoder for engine and trainer: the Llama / Qwen2 / Qwen3 family over packed tokens.

The decoder sees T flat tokens with their positions. The caller decides which tokens attend to which, by passing an
`Attention`: packed causal sequences for training (`attention.py`), a KV cache for generation (`freerun.engine`).
Sharing everything else makes the logprobs of engine and trainer agree to 1e-5.

Left out: mixture of experts, sliding windows, multimodal inputs. `decoder_config.py` refuses them by name.

Shapes: T packed tokens, C hidden size, H query heads, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from freerun.model.activations import gated, rms_norm
from freerun.model.decoder_config import DecoderConfig
from freerun.model.packed import PackedWeight, is_worth_packing
from freerun.model.unkept import with_unkept_inputs


class Attention(Protocol):
    """Attention of one layer: rotated queries and keys in, attended values out."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor: ...


class Linear(nn.Linear):
    """A linear layer whose weight may also be packed for generation. It draws nothing on the meta device."""

    packed: PackedWeight | None = None

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.packed is None else self.packed.linear(x, self.bias)


class Embedding(nn.Embedding):
    """An embedding that draws nothing on the meta device: torch would import its compiler for it, for seconds."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast queries and keys are bfloat16 while the weight is float32.
        return rms_norm(x, self.weight.to(x.dtype), self.eps)


def rotary_frequencies(config: DecoderConfig) -> Tensor:
    """Angular frequency of each pair of head dimensions."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    low = scaling.original_max_positions / scaling.low_freq_factor
    high = scaling.original_max_positions / scaling.high_freq_factor
    smooth = (scaling.original_max_positions / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    stretched = torch.where(wavelengths > low, frequencies / scaling.factor, frequencies)
    return torch.where((wavelengths <= low) & (wavelengths >= high), blended, stretched)


def rotate(x_THD: Tensor, cos_T1D: Tensor, sin_T1D: Tensor) -> Tensor:
    """Rotary position embedding, halves convention; always computed in float32.

    The first half of the sines is already negated, so rolling the halves is enough.
    """
    rolled_THD = x_THD.roll(x_THD.shape[-1] // 2, dims=-1)
    return torch.addcmul(x_THD * cos_T1D, rolled_THD, sin_T1D).to(x_THD.dtype)


class Block(nn.Module):
    """Attention and feed-forward with pre-norms; q, k, v and gate, up are each one matrix."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.is_recomputed = False
        """Whether the backward pass recomputes the whole block from its input, and keeps nothing else."""
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_size = config.head_size
        num_qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_size
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.qkv = Linear(config.hidden_size, num_qkv, bias=config.has_qkv_bias)
        self.attention_out = Linear(config.num_heads * config.head_size, config.hidden_size, bias=False)
        self.feed_forward_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_size, config.norm_eps) if config.has_qk_norm else None
        self.k_norm = RMSNorm(config.head_size, config.norm_eps) if config.has_qk_norm else None

    def forward(self, x_TC: Tensor, cos_T1D: Tensor, sin_T1D: Tensor, attend: Attention) -> Tensor:
        if not (self.is_recomputed and torch.is_grad_enabled()):
            return self._compute(x_TC, cos_T1D, sin_T1D, attend, with_unkept_inputs)
        # Everything is recomputed, so nothing inside is kept by other means. Done here, not around the block:
        # hooks of the block, such as those that gather its weights, must not run within its own backward pass.
        out_TC: Tensor = checkpoint(
            self._compute,
            x_TC,
            cos_T1D,
            sin_T1D,
            attend,
            lambda function, compute, *sources: function(*compute(*sources)),
            use_reentrant=False,
            preserve_rng_state=False,
        )
        return out_TC

    def _compute(
        self, x_TC: Tensor, cos_T1D: Tensor, sin_T1D: Tensor, attend: Attention, feed: Callable[..., Tensor]
    ) -> Tensor:
        """`feed` calls a layer with the inputs computed for it (`unkept.py`)."""
        qkv = feed(self.qkv, lambda x: (self.attention_norm(x),), x_TC).view(x_TC.shape[0], -1, self.head_size)
        qk, v_TKD = qkv.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)

        def attend_to(q_THD: Tensor, k_TKD: Tensor) -> Tensor:
            return attend(self.layer, q_THD, k_TKD, v_TKD)

        def rotated(qk: Tensor) -> Sequence[Tensor]:
            qk = rotate(self._normed(qk), cos_T1D, sin_T1D)
            return torch.split(qk, [self.num_heads, self.num_kv_heads], dim=1)

        attended_THD = feed(attend_to, rotated, qk)
        x_TC = x_TC + self.attention_out(attended_THD.reshape(x_TC.shape[0], -1))
        gate_up = feed(self.gate_up, lambda x: (self.feed_forward_norm(x),), x_TC)
        out_TC: Tensor = x_TC + feed(self.down, lambda x: (gated(x),), gate_up)
        return out_TC

    def _normed(self, qk: Tensor) -> Tensor:
        """Stacked queries and keys, normalised if the model has q/k norms."""
        if self.q_norm is None or self.k_norm is None:
            return qk
        q_THD, k_TKD = qk.split([self.num_heads, self.num_kv_heads], dim=1)
        return torch.cat((self.q_norm(q_THD), self.k_norm(k_TKD)), dim=1)


class Decoder(nn.Module):
    """Token ids and positions in, normalised hidden states out; `logits` are computed only where needed."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.final_norm = RMSNorm(config.hidden_size, config.norm_eps)
        if not config.is_head_tied:
            self.head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self._rotary_P21D: Tensor | None = None
        self._packed_embedding: PackedWeight | None = None

    def forward(self, token_ids_T: Tensor, positions_T: Tensor, attend: Attention) -> Tensor:
        x_TC = self.embedding(token_ids_T)
        cos_T1D, sin_T1D = self._rotary_table(x_TC.device)[positions_T].unbind(1)
        for block in self.blocks:
            x_TC = block(x_TC, cos_T1D, sin_T1D, attend)
        hidden_TC: Tensor = self.final_norm(x_TC)
        return hidden_TC

    @property
    def head_weight(self) -> Tensor:
        """The matrix that turns hidden states into logits."""
        weight: Tensor = self.embedding.weight if self.config.is_head_tied else self.head.weight
        return weight

    def logits(self, hidden_TC: Tensor) -> Tensor:
        if not self.config.is_head_tied:
            logits_TV: Tensor = self.head(hidden_TC)
            return logits_TV
        if self._packed_embedding is not None:
            return self._packed_embedding.linear(hidden_TC, None)
        return F.linear(hidden_TC, self.embedding.weight)

    def recompute_blocks(self, is_on: bool) -> None:
        """Set whether the backward pass recomputes each block from its input (`train.recompute_activations`)."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.is_recomputed = is_on

    def pack(
        self, weights: Mapping[str, Tensor], spare: Mapping[str, PackedWeight] = MappingProxyType({})
    ) -> dict[str, PackedWeight]:
        """Pack `weights`, and those of this model that are not packed yet; `spare` ones give their memory.

        The model is not changed, so another thread may compute with it; `use_packed` makes it use the result.
        """
        return {
            name: PackedWeight(weights.get(name, own).to(own.dtype), spare=spare.get(name))
            for name, own, packed in self._multiplied()
            if (packed is None or name in weights) and is_worth_packing(own)
        }

    def use_packed(self, packed: Mapping[str, PackedWeight]) -> dict[str, PackedWeight]:
        """Use these packed weights; returns the ones they replace."""
        replaced = {name: old for name, old in self.packed_weights().items() if name in packed}
        for name, layer in self.named_modules():
            if isinstance(layer, Linear):
                layer.packed = packed.get(f"{name}.weight", layer.packed)
        self._packed_embedding = packed.get("embedding.weight", self._packed_embedding)
        return replaced

    def packed_weights(self) -> dict[str, PackedWeight]:
        """The packed copies by the names of their weights."""
        return {name: packed for name, _, packed in self._multiplied() if packed is not None}

    def _multiplied(self) -> Iterator[tuple[str, Tensor, PackedWeight | None]]:
        """The weights that hidden states are multiplied by: name, plain and packed form."""
        for name, layer in self.named_modules():
            if isinstance(layer, Linear):
                yield f"{name}.weight", layer.weight, layer.packed
        if self.config.is_head_tied:
            yield "embedding.weight", self.embedding.weight, self._packed_embedding

    def frozen_copy(self, changing: Collection[str]) -> Decoder:
        """A copy for generation that keeps the current weights named in `changing` and shares the others.

        Packed weights are shared too, since they never change. Of a packed weight in `changing` only the packed
        form is kept: the layer's parameter is empty.
        """
        packed_weights = self.packed_weights()
        stand_ins: dict[int, Any] = {id(p): p for name, p in self.named_parameters() if name not in changing}
        for packed in packed_weights.values():
            packed.is_shared = True
            stand_ins[id(packed)] = packed
        for name, layer in self.named_modules():
            if isinstance(layer, Linear) and layer.packed is not None and f"{name}.weight" in changing:
                stand_ins[id(layer.weight)] = nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
        return copy.deepcopy(self, stand_ins)

    def _rotary_table(self, device: torch.device) -> Tensor:
        """Cosines and signed sines (`rotate`) of every position; derived, so not saved or published."""
        if self._rotary_P21D is None or self._rotary_P21D.device != device:
            with torch.no_grad():
                positions = torch.arange(self.config.max_positions, dtype=torch.float32)
                angles_PE = torch.outer(positions, rotary_frequencies(self.config))
                cos_PE, sin_PE = angles_PE.cos(), angles_PE.sin()
                table = torch.stack((torch.cat((cos_PE, cos_PE), -1), torch.cat((-sin_PE, sin_PE), -1)), dim=1)
                self._rotary_P21D = table.unsqueeze(2).to(device)
        return self._rotary_P21D
