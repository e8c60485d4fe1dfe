"""The grader "reasoning-gym": an entry of that package is the answer, and its dataset scores completions.

The prompt's answer is the entry as JSON. What is scored is the text of the last <answer> pair; without
one, the last lines of the completion, as many as the entry's own answer has.

Two lessons of the package's hundred datasets. Some scorers raise on text they did not expect (prime
factors that are no numbers): that is a wrong completion. Some compare with metadata that JSON does not keep
(tuples, in arc_agi) and would call every completion wrong: an entry whose own answer does not get all of the
credit is refused.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import reprlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from freerun.errors import ConfigError
from freerun.reward.verdict import CREDIT_TOLERANCE, Credit

Scorer = Callable[..., float]
_ANSWER = re.compile(r"(?s)<answer>((?:(?!<answer>).)*?)</answer>")


def check_installed() -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ConfigError(
            'config: the grader "reasoning-gym" needs a package that is not installed; '
            "pip install 'freerun[tasks]'"
        )


def reasoning_gym_grader() -> Callable[[str, str, str], Credit]:
    check_installed()
    # Imported only by those who use it: it takes a second, and sympy with it.
    find_scorer = importlib.import_module("reasoning_gym").get_score_answer_fn
    # A scorer is a whole dataset, and a group's completions share one entry: neither is made twice in a row.
    scorer_of = lru_cache(maxsize=None)(find_scorer)
    read = lru_cache(maxsize=8)(lambda text: _read_entry(text, scorer_of))

    def grade_entry(prompt: str, completion: str, answer: str) -> Credit:
        entry, scorer = read(answer)
        return Credit(_score(scorer, _extract(completion, entry["answer"]), entry))

    return grade_entry


def _read_entry(text: str, scorer_of: Callable[[str], Scorer]) -> tuple[dict[str, Any], Scorer]:
    try:
        entry = json.loads(text)
        scorer = scorer_of(entry["metadata"]["source_dataset"])
        own_answer = entry["answer"]
        # Raises for an entry whose metadata are not its dataset's.
        credit = scorer(answer=own_answer, entry=entry)
    except Exception as error:  # of whatever kind: the entry is the user's data, the scorer foreign code
        raise ValueError(
            f"the answer {reprlib.repr(text)} is not the JSON of a reasoning_gym entry: "
            f"{type(error).__name__}: {error}"
        ) from error
    # Datasets with many solutions may name none.
    if own_answer is not None and credit < 1 - CREDIT_TOLERANCE:
        raise ValueError(
            f"the scorer of {entry['metadata']['source_dataset']} gives the entry's own answer {credit}; "
            "its metadata are damaged, or of a kind that JSON does not keep"
        )
    return entry, scorer


def _score(scorer: Scorer, answer: str, entry: dict[str, Any]) -> float:
    try:
        return float(scorer(answer=answer, entry=entry))
    except Exception:  # noqa: BLE001 - the entry is good, so it is this text that the scorer cannot read
        return 0.0


def _extract(completion: str, own_answer: str | None) -> str:
    tagged = _ANSWER.findall(completion)
    if tagged:
        return str(tagged[-1]).strip()
    if own_answer is None:
        return completion.strip()
    num_lines = max(1, len(own_answer.strip().splitlines()))
    return "\n".join(completion.strip().splitlines()[-num_lines:]).strip()
