"""Programs and their tests: the public sets where they are at hand, and a few of our own that always are."""

import json
import os
from pathlib import Path
from typing import NamedTuple


class CodeTask(NamedTuple):
    """What the code grader is given, with a completion that is right."""

    key: str
    prompt: str
    completion: str
    answer: str


def data_directory() -> Path | None:
    """Where the public data sets are: $FREERUN_DATA, else data/ or a shared/data beside the project."""
    root = Path(__file__).resolve().parents[2]
    given = os.environ.get("FREERUN_DATA")
    places = [Path(given)] if given else [root / "data", root.parent / "shared" / "data"]
    return next((place for place in places if (place / "humaneval" / "HumanEval.jsonl").exists()), None)


def canonical_tasks(directory: Path) -> list[CodeTask]:
    """All 164 of HumanEval and all 427 of sanitized MBPP, with their own solutions."""
    rows = [json.loads(line) for line in (directory / "humaneval" / "HumanEval.jsonl").read_text().splitlines()]
    prompts = [
        CodeTask(
            row["task_id"], row["prompt"], row["canonical_solution"], f"{row['test']}\ncheck({row['entry_point']})"
        )
        for row in rows
    ]
    for row in json.loads((directory / "mbpp" / "sanitized-mbpp.json").read_text()):
        answer = "\n".join([*row["test_imports"], *row["test_list"]])
        prompts.append(CodeTask(f"MBPP/{row['task_id']}", row["prompt"], row["code"], answer))
    return prompts
