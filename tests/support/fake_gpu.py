"""A GPU that is not there: torch's meta device, under the rules of a real one.

Its tensors have shapes and no numbers. An operation that mixes them with the CPU's raises, as CUDA does; only
copies and single numbers may (CUDA would also take indices of the CPU, and wait for them: not here). What went
there unchanged comes back to the CPU as it was, and the results of computations as ones.

This proves where tensors are, and that each is moved that has to be. It proves nothing about what a GPU would
compute, nor which kernels it has.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU = torch.device("meta")
aten = torch.ops.aten
MAY_MIX = {aten._to_copy.default, aten.copy_.default}


class FakeGPU(TorchDispatchMode):
    """Inside, `GPU` is a device like any other."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's, behind super()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # in inference mode operations come here before they are taken apart
            if (whole := func.decompose(*args, **kwargs)) is not NotImplemented:
                return whole
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if tensors and tensors[-1].device == GPU and (answer := _read(func, tensors, kwargs)) is not None:
            return answer
        devices = {tensor.device for tensor in tensors if tensor.ndim > 0 or tensor.device == GPU}
        if len(devices) > 1 and func not in MAY_MIX:
            raise RuntimeError(f"{func} was given tensors of several devices: {[str(t.device) for t in tensors]}")
        result = func(*args, **kwargs)
        if func is aten._to_copy.default and tensors[0].device != GPU and result.device == GPU:
            result.numbers = tensors[0]
        return result


def _read(func: Any, tensors: list[Tensor], kwargs: dict[str, Any]) -> Any:
    """The answer of an operation that needs the numbers of a tensor of the GPU; None for all others."""
    source = tensors[-1]
    numbers = getattr(source, "numbers", None)
    if numbers is None:
        numbers = torch.ones(source.shape, dtype=source.dtype)
    if func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
        return numbers.to(kwargs.get("dtype") or source.dtype, copy=True)
    if func is aten.copy_.default and tensors[0].device != GPU:
        return tensors[0].copy_(numbers)
    if func is aten._local_scalar_dense.default:
        return numbers.item()
    return None
