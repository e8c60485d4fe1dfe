"""A grader process: runs the run's graders, one completion at a time, in its main thread.

It trusts a grader with nothing but its answer: what it raises, an exit included, becomes data; what it
prints goes to the log; a fork of this process that comes back from the grader ends; programs it leaves
running, daemons too, end with this process (`guard.py`). It sets no alarm and no limit: the pool outside holds
the clock and kills.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError
from freerun.processes.guard import leave_guard
from freerun.processes.parent import Parent, run_worker
from freerun.reward.graders import GraderFunction, make_graders
from freerun.reward.messages import Begin, Graded, Job, Jobs, Ready, Refused, ToWorker
from freerun.reward.verdict import to_reward
from freerun.types import Grade, GradeFailed

NUM_TRACEBACK_LINES = 12
MAX_REASON_CHARACTERS = 2000


def serve(parent: Parent[ToWorker]) -> None:
    """Answer jobs until the parent is gone, which ends the process."""
    sys.stdout = sys.stderr  # the same log, but a line at a time: nothing is lost when the process is killed
    begin = _next_message(parent)
    assert isinstance(begin, Begin)
    try:
        graders = make_graders(begin.config)
    except ConfigError as error:
        traceback.print_exc()
        parent.send(Refused(_sendable(str(error))))
        parent.finish()
        return
    parent.send(Ready())
    while True:
        message = _next_message(parent)
        assert isinstance(message, Jobs)
        for job in message.jobs:
            parent.send_now(Graded(job.number, _grade(graders[job.grader], job, begin.config)))


def _next_message(parent: Parent[ToWorker]) -> ToWorker:
    while (message := parent.receive(timeout_seconds=3600)) is None:
        pass  # an idle hour; the death of the parent ends the process by itself
    return message


def _grade(grader: GraderFunction, job: Job, config: RewardConfig) -> Grade:
    pid = os.getpid()
    try:
        return to_reward(grader(job.prompt, job.completion, job.answer), job.grader, config)
    except BaseException:  # noqa: BLE001 - the edge of user code: a failure is data
        return GradeFailed(f"{job.grader} failed:\n{_sendable(_end_of_traceback())}")
    finally:
        if os.getpid() != pid:
            os._exit(0)


def _end_of_traceback() -> str:
    lines = traceback.format_exc().strip().splitlines()
    return "\n".join(lines[-NUM_TRACEBACK_LINES:])


def _sendable(reason: str) -> str:
    # The message is the user's: of any length, and not necessarily Unicode that can be encoded.
    return reason[-MAX_REASON_CHARACTERS:].encode(errors="replace").decode()


def main() -> None:
    """The whole life of a grader process."""
    leave_guard()
    run_worker(ToWorker, serve)


if __name__ == "__main__":
    # By another import of this module: graders write into __main__, and must not replace what is used here.
    importlib.import_module("freerun.reward.worker").main()
