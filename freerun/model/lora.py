"""Low-rank adapters inside the decoder: y = x W^T + scale * (x A^T) B^T, with W frozen.

    weight   [q; k; v]            frozen, stacked as without an adapter
    lora_A   [A_q; A_v]           one product for all projections of the layer that have an adapter
    lora_B   [B_q; B_v]           each applied to its own part of the product, added to its own rows of y

Engine and trainer use this same module, so their logprobs agree as they do without an adapter. At the start A is
random and B is zero: version 0 is exactly the base model. There is no dropout: the engine must sample from the
distribution that the trainer computes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
import xxhash
from torch import Tensor, nn
from torch.nn import functional as F

from freerun.config.lora import LoraConfig
from freerun.model.decoder import Decoder, Linear
from freerun.model.families import Projection, projections_of
from freerun.model.shares import Shares


class LoraLinear(Linear):
    """A frozen linear layer with adapters on some of the projections that it stacks."""

    def __init__(self, linear: nn.Linear, projections: Sequence[Projection], *, rank: int, scale: float) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.projections = tuple(projections)
        self.rank = rank
        self.scale = scale
        num_rows = sum(p.num_rows for p in projections)
        self.lora_A = nn.Parameter(torch.empty(len(projections) * rank, linear.in_features))
        self.lora_B = nn.Parameter(torch.zeros(num_rows, rank))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        low = F.linear(x, self.lora_A).split(self.rank, dim=-1)
        for part, (projection, _, B) in zip(low, self.matrices(self.lora_A, self.lora_B), strict=True):
            y[..., projection.rows].add_(F.linear(part, B), alpha=self.scale)
        return y

    def matrices(self, lora_A: Tensor, lora_B: Tensor) -> Iterator[tuple[Projection, Tensor, Tensor]]:
        """The parts of stacked matrices (this layer's or equal ones) that belong to each projection."""
        Bs = lora_B.split([p.num_rows for p in self.projections])
        return zip(self.projections, lora_A.split(self.rank), Bs, strict=True)


@torch.no_grad()
def merged_state(model: Decoder) -> dict[str, Tensor]:
    """The weights of a plain decoder that computes the same as this one with its adapter."""
    adapter = trained_parameters(model)
    state = {name: parameter.data for name, parameter in model.named_parameters() if name not in adapter}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLinear):
            weight = layer.weight.clone()
            for projection, A, B in layer.matrices(layer.lora_A, layer.lora_B):
                weight[projection.rows] += layer.scale * (B @ A)
            state[f"{name}.weight"] = weight
    return state


def add_adapter(model: Decoder, config: LoraConfig, *, seed: int) -> None:
    """Freeze the model and add an adapter, initially without effect, to the configured projections."""
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    for name, projections in projections_of(model.config):
        chosen = [p for p in projections if p.target in config.targets]
        if not chosen:
            continue
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        layer = LoraLinear(linear, chosen, rank=config.rank, scale=config.scale)
        bound = 1 / math.sqrt(linear.in_features)  # PEFT's initialisation: Kaiming uniform with a = sqrt(5)
        with torch.no_grad():
            layer.lora_A.uniform_(-bound, bound, generator=generator)
        model.set_submodule(name, layer)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained and published parameters: the adapter's if there is one, else all."""
    parameters = dict(model.named_parameters())
    adapter = {name: p for name, p in parameters.items() if name.endswith((".lora_A", ".lora_B"))}
    return adapter or parameters


def frozen_checksum(model: nn.Module, shares: Shares) -> str:
    """A hash of the frozen weights under an adapter; empty for a model without one."""
    trained = trained_parameters(model)
    frozen = {name: p for name, p in model.named_parameters() if name not in trained}
    return weights_checksum(frozen.items(), shares) if frozen else ""


def weights_checksum(parameters: Iterable[tuple[str, nn.Parameter]], shares: Shares) -> str:
    """A hash of the full tensors; one at a time is gathered."""
    digest = xxhash.xxh3_64()
    for name, parameter in parameters:
        full = shares.whole(parameter.detach()).to("cpu").contiguous()
        digest.update(name.encode())
        digest.update(full.view(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest())
