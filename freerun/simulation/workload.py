"""What a run has to do, apart from the machine: lengths of completions and prompts, and the time of a grade."""

from dataclasses import dataclass
from statistics import fmean

from freerun.config.recipe import Recipe
from freerun.errors import FreerunError
from freerun.simulation.lengths import Drift, Lengths, LognormalLengths, fit_mean

DEFAULT_SIGMA = 0.8
DEFAULT_LIKENESS = 0.5
GUESSED_SHARE = 0.3
"""Mean length as a share of the longest, if nothing is known."""
_NUM_COUNTED = 256


@dataclass(frozen=True)
class Workload:
    """Of one task."""

    lengths: Lengths
    prompt_tokens: int
    grade_seconds: float
    """Of one completion; 0 leaves graders out."""
    words: str
    """Where it comes from, for people."""

    def mean_length(self, group_size: int) -> float:
        """Sampled tokens of a completion, over the first groups."""
        num_groups = max(1, _NUM_COUNTED // group_size)
        return fmean(
            length for ordinal in range(num_groups) for length in self.lengths.of_group(ordinal, group_size)
        )


def guess_workload(
    recipe: Recipe,
    *,
    mean: float | None = None,
    sigma: float = DEFAULT_SIGMA,
    likeness: float = DEFAULT_LIKENESS,
    growth: float = 1.0,
    prompt_tokens: int | None = None,
    grade_seconds: float = 0.0,
) -> Workload:
    """From a mean length; without one it is a guess, and says so."""
    cap, is_guess = recipe.sampling.max_completion_tokens, mean is None
    mean = max(2.0, GUESSED_SHARE * cap) if mean is None else mean
    if not 1 <= mean < cap:
        raise FreerunError(
            f"--lengths {mean:g} is not between 1 and sampling.max_completion_tokens = {cap}; give the mean "
            "length of completions"
        )
    if not 0 <= likeness <= 1:
        raise FreerunError(f"--likeness {likeness:g} is not a share; give a number from 0 to 1")
    drift = Drift(growth, recipe.train.num_steps * recipe.train.prompts_per_step) if growth != 1.0 else None
    prompt = min(prompt_tokens or recipe.data.max_prompt_tokens // 2 or 1, recipe.data.max_prompt_tokens)
    known = "" if not is_guess else " (a guess: measure it with `freerun calibrate RUN`, or give --lengths)"
    return Workload(
        lengths=LognormalLengths(fit_mean(mean, sigma, cap), sigma, cap, likeness=likeness, drift=drift),
        prompt_tokens=prompt,
        grade_seconds=grade_seconds,
        words=f"mean {mean:,.0f} of at most {cap:,} tokens{known}, likeness {likeness:g}, prompts of {prompt}",
    )
