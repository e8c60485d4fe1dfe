"""Low-rank adapters: train two thin matrices beside each chosen projection instead of the whole model."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from freerun.config.checks import FACTOR, Range, require, require_ranges

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The projections of every layer, by their Hugging Face names."""


@dataclass(frozen=True)
class LoraConfig:
    rank: int = 0
    """Rank of the adapter that is trained and published instead of the model; 0 trains the whole model."""
    alpha: float = 32.0
    """The adapter's output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = LORA_TARGETS
    """Projections of every layer that get an adapter, by their Hugging Face names."""

    def __post_init__(self) -> None:
        require_ranges("lora", self, rank=Range(0, 65_536), alpha=FACTOR)
        require(self.targets != (), f"lora.targets is empty; name some of {', '.join(LORA_TARGETS)}")
        for target in self.targets:
            nearest = difflib.get_close_matches(target, LORA_TARGETS, n=1)
            meant = f' (did you mean "{nearest[0]}"?)' if nearest else ""
            require(
                target in LORA_TARGETS,
                f'lora.targets holds "{target}"{meant}; the projections are {", ".join(LORA_TARGETS)}',
            )
        require(len(set(self.targets)) == len(self.targets), "lora.targets names a projection twice")

    @property
    def is_on(self) -> bool:
        return self.rank > 0

    @property
    def scale(self) -> float:
        return self.alpha / self.rank
