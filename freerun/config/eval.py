"""How much is measured on held-out prompts, and when."""

from __future__ import annotations

from dataclasses import dataclass

from freerun.config.checks import require_positive


@dataclass(frozen=True)
class EvalConfig:
    every_steps: int = 10
    """Held-out evaluation after this many steps, beside training rollouts; the first and last version always."""
    num_prompts: int = 64
    """Held-out prompts used, at most."""
    num_samples: int = 4
    """Completions per held-out prompt, sampled like training rollouts."""

    def __post_init__(self) -> None:
        require_positive(
            "eval", every_steps=self.every_steps, num_prompts=self.num_prompts, num_samples=self.num_samples
        )
