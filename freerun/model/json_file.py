"""JSON objects of a model directory; anything else that such a file may hold is an error that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from freerun.errors import ModelError


def read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}:{error.lineno}: not JSON ({error.msg}); restore the file") from None
    except RecursionError:
        raise ModelError(f"{path}: nested too deeply; restore the file") from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a number of thousands of digits
        raise ModelError(f"{path}: cannot be read ({error}); restore the file") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: not a JSON object; restore the file")
    return content
