"""How many held-out prompts are evaluated, and when."""

from dataclasses import dataclass

from freerun.config.section import Section
from freerun.config.values import Count, CountOrNone, GroupCount


@dataclass(frozen=True)
class EvalConfig(Section, name="eval"):
    every_steps: Count = 10
    """Held-out evaluation after this many steps, beside training rollouts; the first and last version always."""
    num_prompts: CountOrNone = 64
    """Held-out prompts used, at most; 0 evaluates nothing."""
    num_samples: GroupCount = 4
    """Completions per held-out prompt, sampled like training rollouts."""
