"""Lets layers discard inputs of their backward pass that are cheap to recompute.

A linear layer keeps its input, which it needs for the gradient of its weight, and attention keeps its queries and
keys. These inputs are the outputs of norms, of the activation and of the rotation:

    x ── norm ──► input ── linear ──► y          forward: the linear layer saves "norm of x" in place of its input
    x ── norm ──► input ─┘                       backward: the input is computed again when the gradient needs it

`x` is kept anyway, for the backward pass of the norm. The recomputed input has the same bits, and costs a few
passes over memory next to the matrix product that uses it. In a layer of SmolLM2 this saves 6,528 of 12,297
numbers per token.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


def with_unkept_inputs(
    function: Callable[..., Tensor], compute: Callable[..., Sequence[Tensor]], *sources: Tensor
) -> Tensor:
    """`function(*compute(*sources))`, whose backward pass keeps `sources` instead of the computed inputs.

    `compute` must be repeatable, and contribute only to the gradients of its sources and parameters.
    """
    if not torch.is_grad_enabled() or sources[0].is_meta:  # a meta tensor has no memory by which to recognise it
        return function(*compute(*sources))
    again = _Again(compute, sources)
    inputs = again.cast(compute(*sources))
    known = list(inputs)

    def pack(saved: Tensor) -> Any:
        for place, candidate in enumerate(known):
            if _is_same(saved, candidate):
                again.num_saved += 1
                return again, place
        return saved

    with saved_tensors_hooks(pack, _unpack):
        output = function(*inputs)
    known.clear()  # autograd may hold on to `pack`
    return output


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    again, place = packed
    computed: Tensor = again.take(place)
    return computed


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether both are the same memory; both must be alive."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
    )


class _Again:
    """Recomputes inputs, under the autocast state of the forward pass."""

    def __init__(self, compute: Callable[..., Sequence[Tensor]], sources: Sequence[Tensor]) -> None:
        self._compute = compute
        self._sources = [source.detach() for source in sources]
        self._device = sources[0].device.type
        self._dtype = torch.get_autocast_dtype(self._device) if torch.is_autocast_enabled(self._device) else None
        self._computed: Sequence[Tensor] | None = None
        self.num_saved = 0
        """How often the inputs are still needed; they are freed after the last use."""

    def cast(self, computed: Sequence[Tensor]) -> Sequence[Tensor]:
        """Cast as autocast would; otherwise the layer would save a copy that is not recognised."""
        return computed if self._dtype is None else [x.to(self._dtype) for x in computed]

    @torch.no_grad()
    def take(self, place: int) -> Tensor:
        if self._computed is None:
            with torch.autocast(self._device, self._dtype, enabled=self._dtype is not None):
                self._computed = self.cast(self._compute(*self._sources))
        computed = self._computed[place]
        self.num_saved -= 1
        if self.num_saved <= 0:
            self._computed = None
        return computed
