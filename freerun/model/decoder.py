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
from collections.abc import Collection
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from freerun.model.decoder_config import DecoderConfig
from freerun.model.packed import PackedWeight, is_worth_packing


class Attention(Protocol):
    """Attention of one layer: rotated queries and keys in, attended values out."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor: ...


class Linear(nn.Linear):
    """A linear layer; for generation its weight may also be packed."""

    packed: PackedWeight | None = None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.packed is None else self.packed.linear(x, self.bias)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast queries and keys are bfloat16 while the weight is float32.
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


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
        qkv = self.qkv(self.attention_norm(x_TC)).view(x_TC.shape[0], -1, self.head_size)
        qk, v_TKD = qkv.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        q_THD, k_TKD = rotate(self._normed(qk), cos_T1D, sin_T1D).split([self.num_heads, self.num_kv_heads], dim=1)
        attended_THD = attend(self.layer, q_THD, k_TKD, v_TKD)
        x_TC = x_TC + self.attention_out(attended_THD.reshape(x_TC.shape[0], -1))
        gate, up = self.gate_up(self.feed_forward_norm(x_TC)).chunk(2, dim=-1)
        out_TC: Tensor = x_TC + self.down(F.silu(gate) * up)
        return out_TC

    def _normed(self, qk: Tensor) -> Tensor:
        """Stacked queries and keys, normalised if the model has q/k norms."""
        if self.q_norm is None or self.k_norm is None:
            return qk
        q_THD, k_TKD = qk.split([self.num_heads, self.num_kv_heads], dim=1)
        return torch.cat((self.q_norm(q_THD), self.k_norm(k_TKD)), dim=1)


def _packed(weight: Tensor, packed: PackedWeight | None, *, is_changed: bool) -> PackedWeight | None:
    if packed is None:
        return PackedWeight(weight) if is_worth_packing(weight) else None
    if is_changed:
        packed.refresh(weight)
    return packed


class Decoder(nn.Module):
    """Token ids and positions in, normalised hidden states out; `logits` are computed only where needed."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
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

    def logits(self, hidden_TC: Tensor) -> Tensor:
        if not self.config.is_head_tied:
            logits_TV: Tensor = self.head(hidden_TC)
            return logits_TV
        if self._packed_embedding is not None:
            return self._packed_embedding.linear(hidden_TC, None)
        return F.linear(hidden_TC, self.embedding.weight)

    def pack(self, changed: Collection[str]) -> None:
        """Pack the weights for generation; those packed before are packed again only if in `changed`.

        Products then use the packed copies: after changing a weight, pack again.
        """
        for name, layer in self.named_modules():
            if isinstance(layer, Linear):
                layer.packed = _packed(layer.weight, layer.packed, is_changed=f"{name}.weight" in changed)
        if self.config.is_head_tied:
            is_changed = "embedding.weight" in changed
            self._packed_embedding = _packed(self.embedding.weight, self._packed_embedding, is_changed=is_changed)

    def packed_weights(self) -> dict[str, PackedWeight]:
        """The packed copies by the names of their weights."""
        copies = {
            f"{name}.weight": layer.packed for name, layer in self.named_modules() if isinstance(layer, Linear)
        }
        copies["embedding.weight"] = self._packed_embedding
        return {name: packed for name, packed in copies.items() if packed is not None}

    def frozen_copy(self, changing: Collection[str]) -> Decoder:
        """A copy for generation that keeps the weights named in `changing` as they are now and shares the others.

        Of a packed weight in `changing` only the packed form is kept: the layer's parameter is empty.
        """
        weights = (*self.named_parameters(), *self.packed_weights().items())
        stand_ins: dict[int, Any] = {id(weight): weight for name, weight in weights if name not in changing}
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
