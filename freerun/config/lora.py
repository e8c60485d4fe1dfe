"""Low-rank adapters: train two thin matrices next to each chosen projection instead of the whole model."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from freerun.config.section import Section, require
from freerun.config.values import Factor, did_you_mean

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The projections of every layer, by their Hugging Face names."""


@dataclass(frozen=True)
class LoraConfig(Section, name="lora"):
    rank: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """Rank of the adapter that is trained and published instead of the model; 0 trains the whole model."""
    alpha: Factor = 32.0
    """The adapter's output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = LORA_TARGETS
    """Projections of every layer that get an adapter, by their Hugging Face names."""

    def check(self) -> None:
        require(self.targets != (), f"lora.targets is empty; name some of {', '.join(LORA_TARGETS)}")
        for target in self.targets:
            require(
                target in LORA_TARGETS,
                f'lora.targets holds "{target}"; the projections are {", ".join(LORA_TARGETS)}'
                f"{did_you_mean(target, LORA_TARGETS)}",
            )
        require(len(set(self.targets)) == len(self.targets), "lora.targets names a projection twice")

    @property
    def is_on(self) -> bool:
        return self.rank > 0

    @property
    def scale(self) -> float:
        return self.alpha / self.rank
