"""Messages between the grader pool and its processes.

pool ── Begin ──► process ── Ready | ConfigRefused ──► pool    once
pool ── Jobs ───► process ── Graded ──► pool                   for each job, in order

A grade carries the number of its job: a stray message cannot pass for the answer to another job.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from freerun.config.reward import RewardConfig
from freerun.types import Completion, FinishReason, GradeFailed, Prompt, Reward


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Import the graders of these configurations, which differ only in `grader`."""

    configs: tuple[RewardConfig, ...]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Completions of one prompt to be graded by one grader; rewards do not include the grader's weight."""

    number: int
    """Unique among the jobs of a pool."""
    grader: str
    key: str
    """Key of the prompt, used in messages; graders do not see it."""
    prompt: str
    answer: str
    completions: tuple[str, ...]
    """One completion, or all of a group for a function that compares them."""
    finish_reasons: tuple[FinishReason, ...]
    num_tokens: tuple[int, ...]
    row: dict[str, Any] = {}
    """Empty if the grader does not ask for it."""


def job_of(
    number: int, grader: str, prompt: Prompt, completions: Sequence[Completion], *, takes_row: bool = False
) -> Job:
    return Job(
        number=number,
        grader=grader,
        key=prompt.key,
        prompt=prompt.text,
        answer=prompt.answer,
        completions=tuple(completion.text for completion in completions),
        finish_reasons=tuple(completion.finish_reason for completion in completions),
        num_tokens=tuple(len(completion.token_ids) for completion in completions),
        row=prompt.row if takes_row else {},
    )


class Jobs(msgspec.Struct, frozen=True, tag="jobs"):
    """Jobs to be done in order; each is answered as soon as it is done."""

    jobs: tuple[Job, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The graders are imported; the process takes jobs."""

    of_groups: tuple[str, ...] = ()
    """Names of graders that compare all completions of a prompt."""
    with_rows: tuple[str, ...] = ()
    """Names of graders that need the prompt's row."""


class ConfigRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The configuration names an unusable grader."""

    reason: str


class Graded(msgspec.Struct, frozen=True, tag="graded"):
    number: int
    grades: tuple[Reward | GradeFailed, ...]
    """One per completion of the job."""


ToWorker = Begin | Jobs
FromWorker = Ready | ConfigRefused | Graded
