"""The job of one `freerun eval`: a model, a set of prompts, a way of sampling; stored with the results.

evals/<name>/              or runs/<run>/evals/<name>/
    evaluation.json        this job; its presence marks a finished evaluation
    store.sqlite           accuracy, every prompt, every completion
    logs/                  what each process printed
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from freerun.config.recipe import Recipe
from freerun.errors import FreerunError

JOB_FILE = "evaluation.json"
Split = Literal["held-out", "training"]


@dataclass(frozen=True)
class EvalJob:
    """A fully resolved evaluation."""

    recipe: Recipe
    """Only data, sampling, engine, grader and `eval` settings are used."""
    model: str
    """The model directory to evaluate."""
    version: int
    """Version of the checkpoint; 0 for a model that belongs to no run."""
    task: str
    """The task, as text for people."""
    split: Split
    is_greedy: bool
    """Take the most likely token instead of sampling."""
    num_available: int = 0
    """Number of prompts in the split, used or not; known once the data has been read."""

    @property
    def sampling_words(self) -> str:
        return "greedy" if self.is_greedy else f"temperature {self.recipe.sampling.temperature:g}"


def is_evaluation(directory: Path) -> bool:
    return (directory / JOB_FILE).is_file()


def save_job(job: EvalJob, directory: Path) -> None:
    """Mark the directory as a finished evaluation."""
    (directory / JOB_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(job)) + b"\n")


def read_job(directory: Path) -> EvalJob:
    try:
        return msgspec.json.decode((directory / JOB_FILE).read_bytes(), type=EvalJob)
    except (OSError, msgspec.MsgspecError) as error:
        raise FreerunError(f"{directory / JOB_FILE} cannot be read: {error}; evaluate again") from error
