"""Small models with adapters."""

from pathlib import Path

import torch
from torch import Tensor

from freerun.config.lora import LoraConfig
from freerun.model.adapter import save_adapter
from freerun.model.attention import full_forward_logits
from freerun.model.decoder import Decoder
from freerun.model.lora import add_adapter, frozen_checksum, trained_parameters
from freerun.model.shares import Whole

ALL = LoraConfig(rank=4, alpha=6.0)


TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def adapted(model: Decoder, config: LoraConfig = ALL, *, seed: int = 0, b: float = 0.2) -> Decoder:
    """The model with an adapter that matters: B is random too."""
    add_adapter(model, config, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in trained_parameters(model).items():
            if name.endswith("lora_B"):
                parameter.copy_(b * torch.randn(parameter.shape, generator=generator))
    return model


def state_of(model: Decoder) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trained_parameters(model).items()}


def save(model: Decoder, directory: Path, *, base: Path, config: LoraConfig = ALL) -> Path:
    directory.mkdir()
    checksum = frozen_checksum(model, Whole())
    save_adapter(state_of(model), model, directory, config=config, base=base, base_checksum=checksum)
    return directory


@torch.no_grad()
def logprobs(model: Decoder) -> Tensor:
    return torch.log_softmax(full_forward_logits(model, TOKENS), dim=-1)
