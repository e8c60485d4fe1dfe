"""The grader "reasoning-gym": the answer is an entry of that package, and the entry's dataset scores completions.

The prompt's answer is the entry as JSON. The scored text is that of the last <answer> pair; without one, it is
the last lines of the completion, as many as the entry's own answer has.

Some scorers of the package raise on unexpected text (prime factors that are not numbers): that is a wrong
completion. Some compare with metadata that JSON does not keep (tuples, in arc_agi) and would call every
completion wrong: an entry whose own answer does not get full credit is refused.
"""

import importlib
import importlib.util
import json
import re
import reprlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from freerun.config.reward import RewardConfig
from freerun.errors import ConfigError
from freerun.reward.verdict import CREDIT_TOLERANCE, Credit, GraderFunction
from freerun.types import Prompt

Scorer = Callable[..., float]
_ANSWER = re.compile(r"(?s)<answer>((?:(?!<answer>).)*?)</answer>")


def check_installed() -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ConfigError(
            'config: the grader "reasoning-gym" needs a package that is not installed; '
            "pip install 'freerun[tasks]'"
        )


def check_entry(prompt: Prompt) -> None:
    """Raise `ValueError` if the answer is not the JSON of an entry that names its dataset."""
    try:
        entry = json.loads(prompt.answer)
        is_entry = isinstance(entry["metadata"]["source_dataset"], str) and "answer" in entry
    except (ValueError, TypeError, KeyError, RecursionError):
        is_entry = False
    if not is_entry:
        raise ValueError("the answer is not the JSON of a reasoning_gym entry")


def reasoning_gym_grader(config: RewardConfig) -> GraderFunction:
    check_installed()
    # Imported only when used: it takes a second, and imports sympy.
    find_scorer = importlib.import_module("reasoning_gym").get_score_answer_fn
    # A scorer is a whole dataset, and the completions of a group share one entry, so both are cached.
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
        # Raises for an entry whose metadata do not fit its dataset.
        credit = scorer(answer=own_answer, entry=entry)
    except Exception as error:  # any kind: the entry is the user's data, the scorer third-party code
        raise ValueError(
            f"the answer {reprlib.repr(text)} is not the JSON of a reasoning_gym entry: "
            f"{type(error).__name__}: {error}"
        ) from error
    # Datasets with many solutions may have entries without an answer.
    if own_answer is not None and credit < 1 - CREDIT_TOLERANCE:
        raise ValueError(
            f"the scorer of {entry['metadata']['source_dataset']} gives the entry's own answer {credit}; "
            "its metadata are damaged, or of a kind that JSON does not keep"
        )
    return entry, scorer


def _score(scorer: Scorer, answer: str, entry: dict[str, Any]) -> float:
    try:
        return float(scorer(answer=answer, entry=entry))
    except Exception:  # noqa: BLE001 - the entry is good: the scorer cannot read this text
        return 0.0


def _extract(completion: str, own_answer: str | None) -> str:
    tagged = _ANSWER.findall(completion)
    if tagged:
        return str(tagged[-1]).strip()
    if own_answer is None:
        return completion.strip()
    num_lines = max(1, len(own_answer.strip().splitlines()))
    return "\n".join(completion.strip().splitlines()[-num_lines:]).strip()
