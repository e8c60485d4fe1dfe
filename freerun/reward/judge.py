"""One call of a grader, whatever it does: a reward, or a failure with the end of its traceback."""

from __future__ import annotations

import os
import traceback

from freerun.config.reward import RewardConfig
from freerun.reward.graders import GraderFunction
from freerun.reward.messages import Job
from freerun.reward.verdict import to_reward
from freerun.types import Grade, GradeFailed

NUM_TRACEBACK_LINES = 12
MAX_REASON_CHARACTERS = 2000


def judge(grader: GraderFunction, job: Job, config: RewardConfig) -> Grade:
    """What the grader says of the completion; a fork of this process that comes back from it ends."""
    pid = os.getpid()
    try:
        return to_reward(grader(job.prompt, job.completion, job.answer), job.grader, config)
    except BaseException:  # noqa: BLE001 - the edge of user code: a failure is data
        return GradeFailed(f"{job.grader} failed:\n{sendable(_end_of_traceback())}")
    finally:
        if os.getpid() != pid:
            os._exit(0)


def _end_of_traceback() -> str:
    lines = traceback.format_exc().strip().splitlines()
    return "\n".join(lines[-NUM_TRACEBACK_LINES:])


def sendable(reason: str) -> str:
    """The end of a message that is the user's: of any length, and not necessarily Unicode that can be encoded."""
    return reason[-MAX_REASON_CHARACTERS:].encode(errors="replace").decode()
