"""Causal attention over packed families of sequences, for training and for plain full forwards.

A family is a trunk (the prompt) and branches (its completions) that continue it independently:

    packed    t0 t1 t2 | a0 a1 | b0 b1 b2          trunk 3, branches 2 and 3
    position   0  1  2    3  4    3  4  5

A branch attends to the trunk and to itself, never to its siblings. The prompt of a group is computed once, forward
and backward, with exactly the gradients of separate sequences. A plain sequence is a family without branches.

Nothing is padded. Except on CPUs (`cpu_attention.py`) there is one scaled-dot-product call per trunk and branch,
with a mask for branches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from freerun.model.cpu_attention import Look, attend_on_cpu
from freerun.model.decoder import Decoder


@dataclass(frozen=True)
class Family:
    """Lengths of a trunk and of the branches that continue it; an empty branch is left out of the packing."""

    trunk: int
    branches: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.trunk + sum(self.branches)


class PackedCausalAttention:
    """Attends causally within each of several consecutive families."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families
        self._looks = _looks(families)
        self._masks: dict[tuple[int, int], Tensor] = {}

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        if q_THD.device.type == "cpu":
            return attend_on_cpu(q_THD, k_TKD, v_TKD, self._looks)
        return self.attend_with_masks(q_THD, k_TKD, v_TKD)

    def attend_with_masks(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        """Attention with masks, on any device."""
        q_HTD, k_KTD, v_KTD = (x.transpose(0, 1) for x in (q_THD, k_TKD, v_TKD))
        parts = [part for family in self._attended(q_HTD, k_KTD, v_KTD) for part in family]
        return torch.cat(parts, dim=1).transpose(0, 1)

    def _attended(self, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor) -> Iterator[list[Tensor]]:
        begin = 0
        for family in self._families:
            lengths = [family.trunk, *(branch for branch in family.branches if branch)]
            end = begin + family.num_tokens
            q, k, v = (x[:, begin:end].split(lengths, dim=1) for x in (q_HTD, k_KTD, v_KTD))
            parts = [_attend(q[0], k[0], v[0], None)]
            for i, branch in enumerate(lengths[1:], start=1):
                keys, values = torch.cat((k[0], k[i]), dim=1), torch.cat((v[0], v[i]), dim=1)
                parts.append(_attend(q[i], keys, values, self._mask(family.trunk, branch, keys.device)))
            yield parts
            begin = end

    def _mask(self, trunk: int, branch: int, device: torch.device) -> Tensor:
        """Made in the first layer and cached for the others."""
        if (trunk, branch) not in self._masks:
            self._masks[trunk, branch] = _branch_mask(trunk, branch, device)
        return self._masks[trunk, branch]


def _looks(families: Sequence[Family]) -> list[Look]:
    """Which queries see which keys: in each family each trunk and branch itself, then all branches the trunk."""
    looks: list[Look] = []
    begin = 0
    for family in families:
        bounds = list(accumulate((family.trunk, *family.branches), initial=begin))
        segments = [slice(first, last) for first, last in pairwise(bounds) if first < last]
        looks += [Look(segment, segment, is_causal=True) for segment in segments]
        if len(segments) > 1:
            looks.append(Look(slice(bounds[1], bounds[-1]), segments[0], is_causal=False))
        begin = bounds[-1]
    return looks


def _branch_mask(trunk: int, branch: int, device: torch.device) -> Tensor:
    """Which positions of the trunk and of the branch itself each branch position sees."""
    positions_S = torch.arange(trunk + branch, device=device)
    return positions_S <= positions_S[trunk:, None]


def _attend(q_HTD: Tensor, k_KSD: Tensor, v_KSD: Tensor, mask_TS: Tensor | None) -> Tensor:
    """Attention of one sequence: causal if no mask is given."""
    is_grouped = q_HTD.shape[0] != k_KSD.shape[0]
    attended_1HTD = F.scaled_dot_product_attention(
        q_HTD[None], k_KSD[None], v_KSD[None], attn_mask=mask_TS, is_causal=mask_TS is None, enable_gqa=is_grouped
    )
    return attended_1HTD[0]


def packed_positions(families: Sequence[Family]) -> Tensor:
    """Position of each packed token within its own sequence."""
    return torch.cat(
        [
            torch.arange(begin, begin + length)
            for family in families
            for begin, length in ((0, family.trunk), *((family.trunk, branch) for branch in family.branches))
        ]
    )


def full_forward_logits(model: Decoder, token_ids: Sequence[int]) -> Tensor:
    """Logits at every position of one sequence: the plain reference for the engine's cached decoding."""
    device = model.embedding.weight.device
    tokens_T = torch.as_tensor(token_ids, dtype=torch.long, device=device)
    families = [Family(len(tokens_T))]
    hidden_TC = model(tokens_T, packed_positions(families).to(device), PackedCausalAttention(families))
    return model.logits(hidden_TC)
