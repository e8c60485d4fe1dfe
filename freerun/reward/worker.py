"""A grader process: grades one completion at a time in its main thread.

It takes nothing from a grader on trust except its answer. An exception or an exit becomes data; output goes to the
log; a fork of this process that returns from the grader is ended; programs that a grader leaves running, daemons
included, end with this process (`guard.py`). This process sets no alarms or limits: the pool keeps the time and
kills.
"""

import importlib
import sys
import traceback

from freerun.config.user_code import sendable
from freerun.errors import ConfigError
from freerun.processes.guard import leave_guard
from freerun.processes.parent import Parent, run_worker
from freerun.reward.graders import make_graders
from freerun.reward.messages import Begin, ConfigRefused, Graded, Jobs, Ready, ToWorker
from freerun.reward.verdict import judge


def serve(parent: Parent[ToWorker]) -> None:
    """Answer jobs until the parent is gone, which ends the process."""
    sys.stdout = sys.stderr  # line-buffered: nothing is lost if the process is killed
    begin = _next_message(parent)
    assert isinstance(begin, Begin)
    try:
        graders = make_graders(*begin.configs)
    except ConfigError as error:
        traceback.print_exc()
        parent.send(ConfigRefused(sendable(str(error))))
        parent.finish()
        return
    parent.send(
        Ready(
            of_groups=tuple(name for name, grader in graders.items() if grader.is_group),
            with_rows=tuple(name for name, grader in graders.items() if grader.takes_row),
        )
    )
    while True:
        message = _next_message(parent)
        assert isinstance(message, Jobs)
        for job in message.jobs:
            parent.send_now(Graded(job.number, judge(graders[job.grader], job, begin.configs[0])))


def _next_message(parent: Parent[ToWorker]) -> ToWorker:
    while (message := parent.receive(timeout_seconds=3600)) is None:
        pass  # no job for an hour; if the parent dies, this process ends
    return message


def main() -> None:
    leave_guard()
    run_worker(ToWorker, serve)


if __name__ == "__main__":
    # Run under its real name: graders may write into __main__ and must not replace names used here.
    importlib.import_module("freerun.reward.worker").main()
