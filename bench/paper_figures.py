"""Figures of the AReaL paper (arXiv 2505.24298) and of its repository's tutorial, as published; facts only."""

from typing import NamedTuple

INFINITE = 1_000_000
"""A staleness bound that never binds."""


class TutorialTime(NamedTuple):
    """A synchronous step of 512 prompts, to 27,648 tokens, half of the GPUs for each stage."""

    model: str
    num_gpus: int
    group_size: int
    seconds: float


TUTORIAL = (
    TutorialTime("1.5b", 8, 16, 3461.0),
    TutorialTime("1.5b", 32, 16, 997.0),
    TutorialTime("1.5b", 128, 16, 391.0),
    TutorialTime("7b", 32, 16, 2275.0),
    TutorialTime("7b", 128, 16, 815.0),
    TutorialTime("32b", 128, 32, 6707.0),
)
"""AReaL's examples/README.md before commit cf46993a3."""

BY_STALENESS = {0: 128.7, 1: 269.3, 2: 356.6, 4: 356.6, 8: 371.7, 16: 382.4, INFINITE: 396.8}
"""Fig. 5c: thousand tokens/s of the 1.5B model on 96 + 32 GPUs."""

BY_STALENESS_8_GPUS = {0: 27.1, 1: 47.8, 2: 47.8, 4: 49.0, 8: 51.5, 16: 52.0}
"""Table 7: 8 GPUs, completions to 8k; the split is not published."""


class Hours(NamedTuple):
    """Table 1."""

    num_gpus: int
    num_steps: int
    max_staleness: int
    verl: float
    synchronous: float
    areal: float


HOURS = {
    "1.5b": Hours(128, 250, 8, 33.6, 41.0, 14.8),
    "7b": Hours(192, 250, 8, 52.1, 57.7, 25.4),
    "14b": Hours(256, 80, 4, 44.4, 48.8, 21.9),
    "32b": Hours(384, 60, 4, 46.4, 51.1, 31.1),
}


class Scaling(NamedTuple):
    """Fig. 4: thousand tokens/s as printed; None where there is no bar."""

    model: str
    context: int
    num_gpus: int
    areal: float
    verl: float | None


SCALING = (
    Scaling("1.5b", 32768, 32, 30.7, 27.0),
    Scaling("1.5b", 32768, 64, 55.8, 39.8),
    Scaling("1.5b", 32768, 128, 102.1, 43.7),
    Scaling("1.5b", 32768, 256, 151.2, 59.3),
    Scaling("1.5b", 16384, 32, 29.0, 29.1),
    Scaling("1.5b", 16384, 64, 55.0, 45.7),
    Scaling("1.5b", 16384, 128, 100.3, 59.1),
    Scaling("1.5b", 16384, 256, 145.8, 76.9),
    Scaling("7b", 32768, 64, 19.4, 19.0),
    Scaling("7b", 32768, 128, 33.9, 26.0),
    Scaling("7b", 32768, 256, 61.9, 33.7),
    Scaling("7b", 32768, 512, 86.1, 37.5),
    Scaling("7b", 16384, 64, 19.0, 22.4),
    Scaling("7b", 16384, 128, 36.7, 34.1),
    Scaling("7b", 16384, 256, 64.1, 48.7),
    Scaling("7b", 16384, 512, 91.0, 61.7),
    Scaling("32b", 32768, 256, 18.0, None),
    Scaling("32b", 32768, 512, 34.1, None),
    Scaling("32b", 16384, 256, 18.8, 12.0),
    Scaling("32b", 16384, 512, 35.7, 18.9),
)
MINIBATCHES = 4
"""Fig. 4 probably counts the tokens of one minibatch of four: see docs/results/simulation.md."""

INTERRUPTIBLE = {"1.5b": 1.12, "7b": 1.17}
"""Fig. 6b: generation with interrupts against without, on 4 nodes."""
