"""A side's end of its pipe: work as a line of JSON in, figures as a line of JSON out. Standard library only.

A side is a script that any environment can run. It sets itself up once, then works on request and sleeps while the
other side is measured.

    from asked import answer                   # a script's own directory is on its path

    def work(num_sequences: int) -> dict[str, float]:
        ...
        return {"tokens_per_second": num_tokens / seconds}

    answer(work)
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

# What libraries print must not get between the answers.
_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def answer(work: Callable[..., dict[str, Any]]) -> None:
    """Report that the side is ready, then do the work of each line until the input ends."""
    print("{}", file=_answers)
    for line in sys.stdin:
        print(json.dumps(work(**json.loads(line))), file=_answers)
