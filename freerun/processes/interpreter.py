"""The command that starts another Python process of this run with the same imports.

`python -m` would search the current directory first: a user's `random.py` would hide Python's, and a checkout
would start its workers with an installed freerun. Here the new process gets the same search path in the same
order, and the running freerun. The user's directory comes last (`config/user_code.py`).
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import freerun

_START = """\
import importlib.util, json, runpy, sys
module, package, path = sys.argv[1:4]
del sys.argv[1:4]
sys.path[:] = json.loads(path) or sys.path
spec = importlib.util.spec_from_file_location("freerun", package + "/__init__.py")
sys.modules["freerun"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["freerun"])
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def python_command(module: str, *, search_path: Sequence[str] | None = None) -> list[str]:
    """`python -m module` with `search_path`, or this process's if None; empty means the interpreter's default."""
    path = sys.path if search_path is None else search_path
    absolute = [os.path.abspath(entry) for entry in path]
    package = str(Path(freerun.__file__).resolve().parent)
    return [sys.executable, "-P", "-c", _START, module, package, json.dumps(absolute)]


def search_current_directory_last() -> None:
    """Undo what `python -m` did to this process's search path."""
    if not sys.flags.safe_path and sys.path and os.path.abspath(sys.path[0]) == os.getcwd():
        sys.path.append(sys.path.pop(0))
