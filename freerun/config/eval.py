"""How much is measured on held-out prompts, and when."""

from __future__ import annotations

from dataclasses import dataclass

from freerun.config.checks import COUNT, GROUPS, require_ranges


@dataclass(frozen=True)
class EvalConfig:
    every_steps: int = 10
    """Held-out evaluation after this many steps, beside training rollouts; the first and last version always."""
    num_prompts: int = 64
    """Held-out prompts used, at most."""
    num_samples: int = 4
    """Completions per held-out prompt, sampled like training rollouts."""

    def __post_init__(self) -> None:
        require_ranges("eval", self, every_steps=COUNT, num_prompts=COUNT, num_samples=GROUPS)
