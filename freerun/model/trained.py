"""The model in training, whole or with an adapter, and how its weights are saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from freerun.config.lora import LoraConfig
from freerun.model.adapter import load_adapter, save_adapter
from freerun.model.checkpoint import empty_model, load_shares, save_weights
from freerun.model.companions import copy_companions, copy_tokenizer
from freerun.model.decoder import Decoder
from freerun.model.lora import add_adapter, frozen_checksum, trained_parameters
from freerun.model.shares import Shares, Whole


@dataclass(frozen=True)
class TrainedModel:
    decoder: Decoder
    base: Path
    lora: LoraConfig
    frozen: str
    """Checksum of the weights that are not trained; empty if all are."""

    @classmethod
    def load(
        cls,
        base: Path,
        lora: LoraConfig,
        *,
        seed: int,
        adapter: Path | None = None,
        shares: Shares | None = None,
        device: torch.device | str = "cpu",
    ) -> TrainedModel:
        """Load the base model; with LoRA, add a new adapter or load a saved one."""
        shares = shares or Whole()
        decoder = empty_model(base)
        if lora.is_on:
            add_adapter(decoder, lora, seed=seed)
        load_shares(decoder, base, shares, device=torch.device(device))
        frozen = frozen_checksum(decoder, shares)
        if adapter is not None:
            load_adapter(decoder, adapter, shares, base_checksum=frozen)
        return cls(decoder, base, lora, frozen)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.decoder.parameters())

    @property
    def num_trained(self) -> int:
        return sum(parameter.numel() for parameter in trained_parameters(self.decoder).values())

    def state(self) -> dict[str, Tensor]:
        """The trained weights, as live tensors."""
        return {name: parameter.detach() for name, parameter in trained_parameters(self.decoder).items()}

    def save(self, state: Mapping[str, Tensor], directory: Path, *, companions: Path) -> None:
        """Write a `state` as a model or adapter directory, with tokenizer and config from `companions`."""
        directory.mkdir(parents=True, exist_ok=True)
        if self.lora.is_on:
            save_adapter(
                state, self.decoder, directory, config=self.lora, base=self.base, base_checksum=self.frozen
            )
            copy_tokenizer(companions, directory)
        else:
            save_weights(state, self.decoder.config, directory)
            copy_companions(companions, directory)
