"""Contrasts within a seed: what two conditions differ in, whatever the seed does to both.

Runs of one seed see the same prompts in the same order and start from the same model, so part of their noise is
shared and cancels in a difference. Each seed gives one number, its mean over all etas but 0; the interval is
Student's t over seeds, as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from freerun.reports.intervals import Estimate, t_interval
from freerun.reports.record import RunNumbers
from freerun.reports.study import Condition, Study

Numbers = Mapping[tuple[Condition, int], RunNumbers]
"""The numbers of a study's finished runs, by condition and seed."""


def by_condition(study: Study, numbers: Mapping[str, RunNumbers]) -> Numbers:
    return {(run.condition, run.seed): numbers[run.name] for run in study.runs if run.name in numbers}


def speedup(study: Study, numbers: Numbers, condition: Condition) -> Estimate:
    """Tokens per second of a condition over those of eta = 0 with the same objective and seed."""
    synchronous = Condition("0", condition.objective)
    pairs = [(numbers.get((condition, s)), numbers.get((synchronous, s))) for s in study.seeds]
    return t_interval([a.tokens_per_second / b.tokens_per_second for a, b in pairs if a and b])


def contrasts(study: Study, numbers: Numbers) -> list[tuple[str, Estimate]]:
    """Differences of held-out accuracy: of all etas but 0 from eta = 0, and between objectives over all but 0."""
    stale = [eta for eta in study.etas if eta != "0"]
    found = []
    if "0" in study.etas and stale:
        for objective in study.objectives:
            baseline = _by_seed(study, numbers, objective, ["0"])
            found.append(
                (f"{objective}, η > 0 against η = 0", _difference(study, numbers, objective, stale, baseline))
            )
    for first, second in combinations(study.objectives, 2):
        baseline = _by_seed(study, numbers, first, stale)
        found.append((f"{second} against {first}, η > 0", _difference(study, numbers, second, stale, baseline)))
    return [(label, estimate) for label, estimate in found if estimate.has_interval]


def _difference(
    study: Study, numbers: Numbers, objective: str, etas: Sequence[str], baseline: Sequence[float]
) -> Estimate:
    means = _by_seed(study, numbers, objective, etas)
    return t_interval([mean - base for mean, base in zip(means, baseline, strict=True)])


def _by_seed(study: Study, numbers: Numbers, objective: str, etas: Sequence[str]) -> list[float]:
    """For each seed the mean accuracy over the etas; nan unless all of them are finished."""
    means = []
    for seed in study.seeds:
        runs = [numbers.get((Condition(eta, objective), seed)) for eta in etas]
        accuracies = [run.final_accuracy for run in runs if run is not None]
        means.append(math.fsum(accuracies) / len(etas) if etas and len(accuracies) == len(etas) else math.nan)
    return means
