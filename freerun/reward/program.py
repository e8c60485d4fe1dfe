"""Finds the program in a completion, and the code of the prompt that it completes.

- A completion with fenced blocks is the last of them that defines what the tests ask for, or else the last.
  Blocks of other languages do not count if there are others. Without a block it is all code.
- Prompt code is Python that ends with a function whose body is missing (HumanEval's form: imports, helpers,
  signature and docstring). It is the last fenced block of the prompt, or begins at the first line that looks like
  code. Other prompts, prose or a function to be repaired, have none.
- A completion that defines what the tests ask for stands for itself, after the imports and helpers of the
  prompt. Any other is taken as the rest of the prompt's last function.
- Code is cut before the first line from which on it does not parse: models go on talking.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass

_FENCE = re.compile(r"^[ \t]*`{3,}([^`\n]*)\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"\W*(?:py\w*|$)", re.IGNORECASE)
"""What stands after the three backticks of a block that may be Python: its name, or nothing."""
_CHAT_MARKER = re.compile(r"<\|[^|>\n]*\|>(?:system|user|assistant)?")
_FIRST_LINE = re.compile(r"^(?:(?:def|async def|class|from|import)\b|@)", re.MULTILINE)
# Text can be made that parses slowly, or has to be cut line by line; the grader's time is bounded for all of it.
MAX_CHARACTERS = 100_000
MAX_CHARACTERS_PARSED = 300_000
MAX_BLOCKS = 8
_UNPARSABLE = (RecursionError, MemoryError, ValueError)


@dataclass(frozen=True)
class PromptCode:
    """The code of a prompt that asks for a function's body."""

    header: str = ""
    """What stands before the unfinished function: imports and helpers."""
    stub: str = ""
    """The unfinished function, up to where the completion goes on."""

    @property
    def helpers(self) -> set[str]:
        """Names that the prompt itself defines."""
        return _defined(self.header)


def prompt_code(prompt: str) -> PromptCode:
    """The code at the end of a prompt, if it is a function to be completed."""
    blocks = _python_blocks(prompt)
    text = blocks[-1] if blocks else _CHAT_MARKER.sub("\n", prompt)
    start = _FIRST_LINE.search(text)
    if start is None:
        return PromptCode()
    code = text[start.start() :]
    body = _parsed(code) or _parsed(f"{code.rstrip()}\n    pass\n")
    if not body or not _is_stub(body[-1]):
        # Behind the code of a chat prompt stands the beginning of the next turn.
        code = _longest_program(code)
        body = _parsed(code)
        if not body or not _is_stub(body[-1]):
            return PromptCode()
    lines = code.splitlines(keepends=True)
    first = _first_line_number(body[-1]) - 1
    return PromptCode("".join(lines[:first]), "".join(lines[first:]))


def program_in(completion: str, prompt: PromptCode, names: Collection[str]) -> str:
    """The program that a completion amounts to, where the tests will ask for `names`."""
    code = _chosen_block(completion, set(names))
    alone = _longest_program(code)
    if not prompt.stub or _defined(alone) & set(names):
        return f"{prompt.header}\n{alone}"
    return prompt.header + _longest_program(prompt.stub + code)


def _python_blocks(text: str) -> list[str]:
    return [code for language, code in _FENCE.findall(text) if _PYTHON.match(language)]


def _chosen_block(completion: str, names: set[str]) -> str:
    """The program comes before the example of how to use it, or of how to run it in a shell."""
    blocks = _python_blocks(completion) or [code for _, code in _FENCE.findall(completion)] or [completion]
    last_first = blocks[: -MAX_BLOCKS - 1 : -1]
    # An example may well import what was asked for.
    defining = (block for block in last_first if _defined(_longest_program(block), with_imports=False) & names)
    return next(defining, blocks[-1])


def _longest_program(code: str) -> str:
    """The longest beginning of the code, in whole lines, that parses; empty if it is not found soon."""
    lines = code[:MAX_CHARACTERS].split("\0")[0].splitlines(keepends=True)
    num_parsed = 0
    while (num_parsed := num_parsed + sum(map(len, lines))) < MAX_CHARACTERS_PARSED:
        try:
            _parse("".join(lines))
            return "".join(lines)
        except SyntaxError as error:
            # No beginning that includes the line of the error parses either.
            del lines[max(0, min((error.lineno or 1) - 1, len(lines) - 1)) :]
        except _UNPARSABLE:
            break
    return ""


def _parsed(code: str) -> list[ast.stmt] | None:
    try:
        return _parse(code)
    except (SyntaxError, *_UNPARSABLE):
        return None


def _parse(code: str) -> list[ast.stmt]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an escape sequence that is none, say: not ours to complain about
        return ast.parse(code).body


def _is_stub(statement: ast.stmt) -> bool:
    """Whether it is a function without a body: imports, a docstring, `pass`, `...` or nothing."""
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return all(
        isinstance(part, ast.Pass | ast.Import | ast.ImportFrom)
        or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in statement.body
    )


def _first_line_number(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _defined(code: str, *, with_imports: bool = True) -> set[str]:
    """Names that the top level of a program binds by def, class, assignment or import."""
    names: set[str] = set()
    for statement in _parsed(code) or []:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            if with_imports:
                names |= {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
        else:
            names |= {
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
    return names
