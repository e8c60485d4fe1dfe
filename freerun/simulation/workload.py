"""The workload of a run, independent of the machine: lengths of completions and prompts, and grading time."""

from dataclasses import dataclass
from statistics import fmean

from freerun.config.recipe import Recipe
from freerun.errors import FreerunError
from freerun.simulation.lengths import Drift, Lengths, LognormalLengths, fit_mean

DEFAULT_SIGMA = 0.8
DEFAULT_LIKENESS = 0.5
GUESSED_SHARE = 0.3
"""Assumed mean length as a share of the maximum, if nothing is known."""
_NUM_COUNTED = 256


@dataclass(frozen=True)
class Workload:
    """The workload of one task."""

    lengths: Lengths
    prompt_tokens: int
    grade_seconds: float
    """Time to grade one completion; 0 for no graders."""
    words: str
    """Its origin, as text for people."""

    def mean_length(self, group_size: int) -> float:
        """Mean sampled tokens per completion, over the first groups."""
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
    """A workload from a mean length; without one it is a guess, and is described as such."""
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
