"""A grader process: runs the run's graders, one completion at a time, in its main thread.

It trusts a grader with nothing but its answer: what it raises, an exit included, becomes data; what it
prints goes to the log; a fork of this process that comes back from the grader ends; programs it leaves
running, daemons too, end with this process (`guard.py`). It sets no alarm and no limit: the pool outside holds
the clock and kills.
"""

from __future__ import annotations

import importlib
import sys
import traceback

from freerun.errors import ConfigError
from freerun.processes.guard import leave_guard
from freerun.processes.parent import Parent, run_worker
from freerun.reward.graders import make_graders
from freerun.reward.judge import judge, sendable
from freerun.reward.messages import Begin, Graded, Jobs, Ready, Refused, ToWorker


def serve(parent: Parent[ToWorker]) -> None:
    """Answer jobs until the parent is gone, which ends the process."""
    sys.stdout = sys.stderr  # the same log, but a line at a time: nothing is lost when the process is killed
    begin = _next_message(parent)
    assert isinstance(begin, Begin)
    try:
        graders = make_graders(begin.config)
    except ConfigError as error:
        traceback.print_exc()
        parent.send(Refused(sendable(str(error))))
        parent.finish()
        return
    parent.send(Ready())
    while True:
        message = _next_message(parent)
        assert isinstance(message, Jobs)
        for job in message.jobs:
            parent.send_now(Graded(job.number, judge(graders[job.grader], job, begin.config)))


def _next_message(parent: Parent[ToWorker]) -> ToWorker:
    while (message := parent.receive(timeout_seconds=3600)) is None:
        pass  # an idle hour; the death of the parent ends the process by itself
    return message


def main() -> None:
    """The whole life of a grader process."""
    leave_guard()
    run_worker(ToWorker, serve)


if __name__ == "__main__":
    # By another import of this module: graders write into __main__, and must not replace what is used here.
    importlib.import_module("freerun.reward.worker").main()
