"""Messages between the grader pool and its processes.

pool ── Begin ──► process ── Ready | ConfigRefused ──► pool    once
pool ── Jobs ───► process ── Graded ──► pool                   for each job, in order

A grade carries the number of its job: a stray message cannot pass for the answer to another job.
"""

import msgspec

from freerun.config.reward import RewardConfig
from freerun.types import Completion, GradeFailed, Prompt, Reward


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Import the graders of this configuration."""

    config: RewardConfig


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One completion to be graded by one of the graders; its reward does not include the grader's weight."""

    number: int
    """Unique among the jobs of a pool."""
    grader: str
    key: str
    """Of the prompt, for messages; graders do not see it."""
    prompt: str
    completion: str
    answer: str


def job_of(number: int, grader: str, prompt: Prompt, completion: Completion) -> Job:
    return Job(
        number=number,
        grader=grader,
        key=prompt.key,
        prompt=prompt.text,
        completion=completion.text,
        answer=prompt.answer,
    )


class Jobs(msgspec.Struct, frozen=True, tag="jobs"):
    """Jobs to be done one after another, each answered as soon as it is done."""

    jobs: tuple[Job, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The graders are imported; the process takes jobs."""


class ConfigRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The configuration names a grader that cannot be used."""

    reason: str


class Graded(msgspec.Struct, frozen=True, tag="graded"):
    number: int
    grade: Reward | GradeFailed


ToWorker = Begin | Jobs
FromWorker = Ready | ConfigRefused | Graded
