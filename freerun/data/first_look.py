"""Inspects the rows of a data file: finds the question and answer columns, and the kind of the answers.

    rows ──► columns with a text or a number in every row ──► question, context, answer ──► the kind of the answers

Columns are found by common names, ignoring case. `first_recipe.py` makes a recipe from the result.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from freerun.data.files import rows_of
from freerun.data.rows import Row, RowError, convert, text_of
from freerun.errors import DataError

QUESTION_NAMES = ("question", "problem", "prompt", "query", "instruction", "task", "input", "text", "source")
ANSWER_NAMES = (
    "answer", "final_answer", "expected_answer", "ground_truth", "target", "label", "solution", "output",
    "completion", "response",
)  # fmt: skip
CONTEXT_NAMES = ("context", "passage", "body", "background", "input")
AnswerKind = Literal["number", "math", "code", "short text", "long text"]
SOLUTION_MARK = "####"
"""Separates a worked solution from its answer in GSM8K and many similar data sets."""
MIN_ROWS = 5
"""Minimum number of rows: with fewer, holding out a fifth leaves nothing."""
_NUMBER = re.compile(r"[-+−]?[$€£]?[-+−]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?\s*%?\.?")
_MATHS = re.compile(r"\\[a-zA-Z]+|\$.+\$|\^|[a-z]\s*=", re.DOTALL)
_MAX_WORDS_OF_SHORT_TEXT = 12


@dataclass(frozen=True)
class FirstLook:
    """The relevant columns of a file, and its rows."""

    path: Path
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    """Columns with a text or a number in every row."""
    question: str
    answer: str
    context: str
    """A column to put before the question; empty if there is none."""
    has_solutions: bool
    """Whether every answer is a worked solution, with the final answer after `SOLUTION_MARK`."""

    @property
    def answers(self) -> list[str]:
        """The reference answers, without preceding solutions."""
        return [answer.rpartition(SOLUTION_MARK)[2].strip() for answer in self.texts(self.answer)]

    @property
    def kind(self) -> AnswerKind:
        answers = self.answers
        if all(_NUMBER.fullmatch(answer) for answer in answers):
            return "number"
        if all("assert " in answer for answer in answers):
            return "code"
        if all(_NUMBER.fullmatch(answer) or _MATHS.search(answer) for answer in answers):
            return "math"
        longest = max(len(answer.split()) for answer in answers)
        return "short text" if longest <= _MAX_WORDS_OF_SHORT_TEXT else "long text"

    def texts(self, column: str) -> list[str]:
        return [text_of(row, column, setting="the file") for row in self.rows]


def look_at(path: Path, *, question: str = "", answer: str = "") -> FirstLook:
    """Read the file and find its columns; `question` and `answer` name them if they cannot be found by name."""
    rows = tuple(row for _, row in convert(rows_of(path), lambda key, row: row))
    if len(rows) < MIN_ROWS:
        raise DataError(f"{path}: has {len(rows)} rows; at least {MIN_ROWS} are needed, a fifth to hold out")
    columns = tuple(name for name in rows[0] if all(_is_usable(row, name) for row in rows))
    question = _column(path, columns, question, QUESTION_NAMES, what="question")
    others = tuple(name for name in columns if name != question)
    answer = _column(path, others, answer, ANSWER_NAMES, what="answer")
    context = _named(tuple(name for name in others if name != answer), CONTEXT_NAMES)
    has_solutions = all(SOLUTION_MARK in text_of(row, answer, setting="the file") for row in rows)
    return FirstLook(path, rows, columns, question, answer, context, has_solutions)


def _is_usable(row: Row, name: str) -> bool:
    try:
        return bool(text_of(row, name, setting="the file").strip())
    except RowError:
        return False


def _column(path: Path, columns: Sequence[str], asked: str, names: Sequence[str], *, what: str) -> str:
    """The column that was asked for, or one with a usual name for a question or an answer."""
    there = ", ".join(columns) or "none"
    if asked:
        if asked not in columns:
            raise DataError(
                f'{path}: no column "{asked}" with a text or a number in every row for --{what}; there are {there}'
            )
        return asked
    found = _named(columns, names)
    if not found:
        raise DataError(
            f"{path}: no column with a text or a number in every row is named like the {what}; name it with "
            f"--{what} COLUMN (there are {there})"
        )
    return found


def _named(columns: Sequence[str], names: Sequence[str]) -> str:
    """The column with the first of these names that exists; empty if there is none."""
    by_name = {column.lower().replace("-", "_").replace(" ", "_"): column for column in reversed(columns)}
    return next((by_name[name] for name in names if name in by_name), "")
