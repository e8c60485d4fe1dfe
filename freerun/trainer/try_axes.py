"""A process that imports the user's functions of an objective before a run starts, and reports errors.

Its stdin is the `ObjectiveConfig` as JSON. Its stdout is the error, empty if there is none; what the user's
modules print goes to stderr.
"""

import os
import sys

import msgspec

from freerun.config.objective import ObjectiveConfig
from freerun.errors import FreerunError
from freerun.trainer.axes import load_axes

if __name__ == "__main__":
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        load_axes(msgspec.json.decode(sys.stdin.buffer.read(), type=ObjectiveConfig))
    except FreerunError as error:
        os.write(answer, str(error).encode(errors="replace"))
