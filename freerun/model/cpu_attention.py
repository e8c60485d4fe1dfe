"""Packed causal attention on a CPU, forward and backward, without masks, concatenations or padding.

Every trunk and branch attends to itself, which is plain causal attention. In addition, all branches of a family
attend to the whole trunk, in a single call without a mask.

               t0 t1 t2   a0 a1   b0 b1 b2
    t0 t1 t2    causal
    a0 a1         |       causal
    b0 b1 b2     all              causal

A branch's two parts are combined exactly, by their log-sum-exps. The backward of each part gets the output and
log-sum-exp of the whole, from which it recomputes its probabilities, so the parts' gradients simply add up.

torch's kernels are called by name because `F.scaled_dot_product_attention` does not return the log-sum-exp.

Shapes: T packed tokens, H query heads, K key/value heads, D head size.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Look(NamedTuple):
    """Consecutive queries that attend to consecutive keys."""

    queries: slice
    keys: slice
    is_causal: bool


def attend_on_cpu(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, looks: Sequence[Look]) -> Tensor:
    """The attended values. Causal looks cover T; each other look adds keys to queries that already have some."""
    attended_THD: Tensor = _Attention.apply(q_THD, k_TKD, v_TKD, looks)  # type: ignore[no-untyped-call]
    return attended_THD


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, looks: Sequence[Look]) -> Tensor:
        q, k, v = _heads_first(q_THD), _heads_first(k_TKD), _heads_first(v_TKD)
        out_THD = torch.empty_like(q_THD, memory_format=torch.contiguous_format)
        # The kernels sum in float32 if queries have a shorter dtype.
        lse_TH = q_THD.new_empty(q_THD.shape[:2], dtype=torch.promote_types(q_THD.dtype, torch.float32))
        for queries, keys, is_causal in looks:
            part, lse = _forward(q[:, :, queries], k[:, :, keys], v[:, :, keys], 0.0, is_causal)
            part_THD, part_lse_TH = part[0].transpose(0, 1), lse[0].transpose(0, 1)
            if is_causal:
                out_THD[queries], lse_TH[queries] = part_THD, part_lse_TH
            else:
                _merge(out_THD[queries], lse_TH[queries], part_THD, part_lse_TH)
        ctx.save_for_backward(q_THD, k_TKD, v_TKD, out_THD, lse_TH)
        ctx.looks = looks
        return out_THD

    @staticmethod
    def backward(ctx: Any, grad_THD: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        *inputs, out_THD, lse_TH = ctx.saved_tensors
        q, k, v, out, grad = (_heads_first(x) for x in (*inputs, out_THD, grad_THD))
        lse = lse_TH.t()[None]
        grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
        for queries, keys, is_causal in ctx.looks:
            parts = _backward(
                grad[:, :, queries],
                q[:, :, queries],
                k[:, :, keys],
                v[:, :, keys],
                out[:, :, queries],
                lse[:, :, queries],
                0.0,
                is_causal,
            )
            for whole, at, part in zip(grads, (queries, keys, keys), parts, strict=True):
                if is_causal:
                    whole[at] = part[0].transpose(0, 1)
                else:
                    whole[at] += part[0].transpose(0, 1)
        return grads[0], grads[1], grads[2], None


def _heads_first(x_THD: Tensor) -> Tensor:
    """A view in the kernels' layout, with a batch of one."""
    return x_THD.transpose(0, 1)[None]


def _merge(out_THD: Tensor, lse_TH: Tensor, part_THD: Tensor, part_lse_TH: Tensor) -> None:
    """Merge attention over more keys into the result so far, in place."""
    whole_TH = torch.logaddexp(lse_TH, part_lse_TH)
    share_TH1 = torch.exp(part_lse_TH - whole_TH)[..., None]
    out_THD.lerp_(part_THD, share_TH1.to(out_THD.dtype))
    lse_TH.copy_(whole_TH)
