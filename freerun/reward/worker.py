"""A grader process: runs the run's graders, one completion at a time, in its main thread.

It trusts a grader with nothing but its answer. What the grader raises, an exit included, becomes data; what it
prints goes to the log; a fork of this process that returns from the grader ends; programs it leaves running,
daemons too, end with this process (`guard.py`). It sets no alarm and no limit: the pool outside holds the clock
and kills.
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
    sys.stdout = sys.stderr  # the same log, written line by line: nothing is lost when the process is killed
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
        pass  # an idle hour; if the parent dies, this process ends
    return message


def main() -> None:
    leave_guard()
    run_worker(ToWorker, serve)


if __name__ == "__main__":
    # Under its own name: graders may write into __main__, and must not replace what is used here.
    importlib.import_module("freerun.reward.worker").main()
