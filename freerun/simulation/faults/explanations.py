"""Decides which fault explains which error: a run may only fail for a reason that can be shown to a user.

The error of a session is explained if the words of one of its faults match it. An exception that is not a
`FreerunError` is a bug, except that a machine without room for a process refuses to start one.
"""

import re
from collections.abc import Sequence

from freerun.errors import FreerunError
from freerun.simulation.faults.scenario import Fault, FaultKind

_NO_RESTARTS = r"no restarts are left|it never became ready"
_NO_PLACE = r"no rollout worker has a place"
_TRAINER = r"the trainer (is gone|fell silent|made no progress|sent nonsense)"
_NO_START = r"^grader-\d+ could not start: "
"""Only before the run's first prompt; a grader that dies later is replaced."""

_ERRORS: dict[FaultKind, str] = {
    "rollout dies": _NO_RESTARTS,
    "rollout loses its machine": rf"{_NO_RESTARTS}|{_NO_PLACE}",
    "rollout falls silent": _NO_RESTARTS,
    "rollout gets stuck": _NO_RESTARTS,
    "rollout sends nonsense": r"rollout-\d+ is lost: received an unexpected message",
    "trainer dies": _TRAINER,
    "trainer falls silent": _TRAINER,
    "trainer gets stuck": _TRAINER,
    "trainer sends nonsense": _TRAINER,
    "grader dies": _NO_START,
    "disk full": r"no space left on device",
    "no room for a process": rf"Resource temporarily unavailable|{_NO_START}",
}
"""Patterns of the errors in which a session may end after a fault; other faults must not end a session."""

_DEATHS: dict[FaultKind, str] = {
    "rollout dies": "rollout",
    "rollout loses its machine": "rollout",
    "rollout falls silent": "rollout",
    "rollout gets stuck": "rollout",
    "grader dies": "grader",
    "grader gets stuck": "grader",
    "grader sends nonsense": "grader",
    "grader sends a wrong number": "grader",
    "no room for a process": "grader",
}
"""Kinds of workers that may have to be replaced after a fault."""


def explains_error(faults: Sequence[Fault], error: BaseException) -> bool:
    if not isinstance(error, FreerunError | OSError):
        return False
    return any(re.search(_ERRORS[fault.kind], str(error)) for fault in faults if fault.kind in _ERRORS)


def explains_death(fault: Fault, worker: str) -> bool:
    return worker.startswith(_DEATHS.get(fault.kind, "none"))
