"""Norm and activation for training on CPUs: their backward pass keeps only their input.

Plain autograd keeps every intermediate result of these operations: three tensors for a norm, two for the
activation. Here the backward pass recomputes them, with the operations that autograd would use and in the same
order, so gradients have the same bits. GPUs have a fused norm that keeps no more.

Shapes: T packed tokens, C width, I width of the feed-forward.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    """As `F.rms_norm` over the last dimension."""
    if x_TC.device.type != "cpu" or not torch.is_grad_enabled():
        return F.rms_norm(x_TC, (x_TC.shape[-1],), weight_C, eps)
    normed_TC: Tensor = _RMSNorm.apply(x_TC, weight_C, eps)  # type: ignore[no-untyped-call]
    return normed_TC


def gated(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of the last dimension, times the second half."""
    if not torch.is_grad_enabled():
        return _gated(gate_up)
    product_TI: Tensor = _Gated.apply(gate_up)  # type: ignore[no-untyped-call]
    return product_TI


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
        wide_TC = _wide(x_TC)
        scale_T1 = wide_TC.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x_TC, weight_C, scale_T1)
        return (wide_TC * scale_T1).mul_(weight_C).to(x_TC.dtype)

    @staticmethod
    def backward(ctx: Any, grad_TC: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_TC, weight_C, scale_T1 = ctx.saved_tensors
        wide_TC, grad_TC = _wide(x_TC), _wide(grad_TC)
        grad_x_TC = grad_weight_C = None
        if ctx.needs_input_grad[1]:
            scaled_TC = (wide_TC * scale_T1).mul_(grad_TC)
            grad_weight_C = scaled_TC.flatten(end_dim=-2).sum(dim=0).to(weight_C.dtype)
        if ctx.needs_input_grad[0]:
            grad_scaled_TC = grad_TC * weight_C
            grad_scale_T1 = (grad_scaled_TC * wide_TC).sum(dim=-1, keepdim=True)
            # Through rsqrt and the mean to the squares, whose derivative is 2 x.
            grad_square_T1 = grad_scale_T1.mul_(-0.5).mul_(scale_T1.pow(3)).div_(x_TC.shape[-1])
            grad_wide_TC = grad_scaled_TC.mul_(scale_T1).add_((wide_TC * 2).mul_(grad_square_T1))
            grad_x_TC = grad_wide_TC.to(x_TC.dtype)
        return grad_x_TC, grad_weight_C, None


def _wide(x: Tensor) -> Tensor:
    """The tensor in float32, if its dtype is shorter."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _gated(gate_up: Tensor) -> Tensor:
    gate_TI, up_TI = gate_up.chunk(2, dim=-1)
    return F.silu(gate_TI).mul_(up_TI)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _gated(gate_up)

    @staticmethod
    def backward(ctx: Any, grad_TI: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate_TI, up_TI = gate_up.chunk(2, dim=-1)
        grads = torch.empty_like(gate_up)
        grad_gate_TI, grad_up_TI = grads.chunk(2, dim=-1)
        torch.mul(grad_TI, F.silu(gate_TI), out=grad_up_TI)
        torch.ops.aten.silu_backward.grad_input(grad_TI * up_TI, gate_TI, grad_input=grad_gate_TI)
        return grads
