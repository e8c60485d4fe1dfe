"""What the pool and its grader processes say to each other.

pool ── Begin ──► process ── Ready | Refused ──► pool       once
pool ── Job ────► process ── Reward | GradeFailed ──► pool  one at a time
"""

from __future__ import annotations

import msgspec

from freerun.config.reward import RewardConfig
from freerun.types import GradeFailed, Reward


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Get the graders of this configuration ready."""

    config: RewardConfig


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """One completion to be graded by one of the graders; the reward that comes back is before its weight."""

    grader: str
    prompt: str
    completion: str
    answer: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The graders are imported; jobs may come."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The configuration names a grader that cannot be used."""

    reason: str


ToWorker = Begin | Job
FromWorker = Ready | Refused | Reward | GradeFailed
