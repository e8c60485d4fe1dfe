"""What the pool and its grader processes say to each other.

pool ── Begin ──► process ── Ready | Refused ──► pool    once
pool ── Jobs ───► process ── Graded ──► pool             for each job, in order

A grade carries the number of its job, so that one message too many cannot pass for the answer to another job.
"""

from __future__ import annotations

import msgspec

from freerun.config.reward import RewardConfig
from freerun.types import GradeFailed, Reward


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Get the graders of this configuration ready."""

    config: RewardConfig


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One completion to be graded by one of the graders; the reward that comes back is before its weight."""

    number: int
    """Of this job and no other of the controller's."""
    grader: str
    prompt: str
    completion: str
    answer: str


class Jobs(msgspec.Struct, frozen=True, tag="jobs"):
    """Completions to be graded one after another; each is answered when it has been."""

    jobs: tuple[Job, ...]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The graders are imported; jobs may come."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The configuration names a grader that cannot be used."""

    reason: str


class Graded(msgspec.Struct, frozen=True, tag="graded"):
    """What came of a job."""

    number: int
    grade: Reward | GradeFailed


ToWorker = Begin | Jobs
FromWorker = Ready | Refused | Graded
