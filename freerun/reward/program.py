"""Static analysis for the code grader: finds the program in a completion, and the names its tests ask for.

- In a completion with fenced blocks, the program is the last block that defines what the tests ask for, else
  the last block. Blocks of other languages count only if there are no others. A completion without a block is
  all code.
- Prompt code is Python that ends with a function whose body is missing (HumanEval's form: imports, helpers,
  signature and docstring). It is the last fenced block of the prompt, or begins at the first line that looks like
  code. Other prompts, such as prose or a function to be repaired, have none.
- A completion that defines what the tests ask for is a whole program, put after the prompt's imports and helpers.
  Any other completion completes the prompt's last function.
- Code is cut before the first line that does not parse, because models continue with prose.
- The names that the tests ask for are derived from the tests alone: a program that defines `set`, `math` or
  `check` must not change what the tests use.
"""

import ast
import builtins
import re
import symtable
import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

_FENCE = re.compile(r"^[ \t]*`{3,}([^`\n]*)\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"\W*(?:py\w*|$)", re.IGNORECASE)
"""The language after the backticks of a block that may be Python; may be empty."""
_CHAT_MARKER = re.compile(r"<\|[^|>\n]*\|>(?:system|user|assistant)?")
_FIRST_LINE = re.compile(r"^(?:(?:def|async def|class|from|import)\b|@)", re.MULTILINE)
# Hostile text may parse slowly, or may have to be cut line by line: these limit the total time.
MAX_CHARACTERS = 100_000
MAX_CHARACTERS_PARSED = 300_000
MAX_BLOCKS = 8
_UNPARSABLE = (RecursionError, MemoryError, ValueError)
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class PromptCode:
    """The code of a prompt that asks for a function's body."""

    header: str = ""
    """Imports and helpers before the unfinished function."""
    stub: str = ""
    """The unfinished function, up to where the completion continues."""

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
        # In a chat prompt, the beginning of the next turn follows the code.
        code = _longest_program(code)
        body = _parsed(code)
        if not body or not _is_stub(body[-1]):
            return PromptCode()
    lines = code.splitlines(keepends=True)
    first = _first_line_number(body[-1]) - 1
    return PromptCode("".join(lines[:first]), "".join(lines[first:]))


def program_in(completion: str, prompt: PromptCode, names: Collection[str]) -> str:
    """The program in a completion, for tests that ask for `names`."""
    code = _chosen_block(completion, set(names))
    alone = _longest_program(code)
    if not prompt.stub or _defined(alone) & set(names):
        return f"{prompt.header}\n{alone}"
    return prompt.header + _longest_program(prompt.stub + code)


def _python_blocks(text: str) -> list[str]:
    return [code for language, code in _FENCE.findall(text) if _PYTHON.match(language)]


def _chosen_block(completion: str, names: set[str]) -> str:
    """The block with the program; a block that shows how to use or run it may follow."""
    blocks = _python_blocks(completion) or [code for _, code in _FENCE.findall(completion)] or [completion]
    last_first = blocks[: -MAX_BLOCKS - 1 : -1]
    # An example may import the requested name.
    defining = (block for block in last_first if _defined(_longest_program(block), with_imports=False) & names)
    return next(defining, blocks[-1])


def _longest_program(code: str) -> str:
    """The longest prefix of whole lines that parses; empty if none is found soon."""
    lines = code[:MAX_CHARACTERS].split("\0")[0].splitlines(keepends=True)
    num_parsed = 0
    while (num_parsed := num_parsed + sum(map(len, lines))) < MAX_CHARACTERS_PARSED:
        try:
            _parse("".join(lines))
            return "".join(lines)
        except SyntaxError as error:
            # A prefix that includes the line of the error cannot parse either.
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
        warnings.simplefilter("ignore")  # invalid escape sequences, for example
        return ast.parse(code).body


def _is_stub(statement: ast.stmt) -> bool:
    """Whether the statement is a function without a body: only imports, a docstring, `pass`, `...` or nothing."""
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
    """Names that a program binds at top level by def, class, assignment or import."""
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


class AskedNames(NamedTuple):
    program: list[str]
    """Names that the program under test must define."""
    modules: list[str]
    """Modules of the standard library that the tests use without importing them."""


def asked_names(tests: str, *, known: Collection[str]) -> AskedNames:
    """Names that the tests use but neither define nor find in `known`; raises `ValueError` if there are none.

    Tests that ask for nothing would pass anything. Tests that ask only for built-in names, such as
    `assert sum(10, 15) == 6`, mean a function of that name, if they call just one.
    """
    try:
        table = symtable.symtable(tests, "<tests>", "exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the answer is not a Python program: {error}") from error
    free = _referenced(table, is_top=True) - _bound(table) - set(known)
    modules = sorted(name for name in free & sys.stdlib_module_names if _is_only_qualifier(name, tests))
    program = sorted(free - _BUILTINS - set(modules))
    if not program:
        called = _called(tests) & free & _BUILTINS
        if len(called) != 1:
            raise ValueError("the answer is a program that calls no function which a completion could define")
        program = list(called)
    return AskedNames(program, modules)


def _referenced(table: symtable.SymbolTable, *, is_top: bool) -> set[str]:
    """Global names that are read anywhere in the program."""
    names = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (is_top or s.is_global())}
    return names.union(*(_referenced(child, is_top=False) for child in table.get_children()))


def _bound(table: symtable.SymbolTable) -> set[str]:
    """Names that the top level binds."""
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}


def _is_only_qualifier(name: str, tests: str) -> bool:
    """Whether a name occurs only in the form `name.something`."""
    tree = ast.parse(tests)
    qualifiers = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return all(id(n) in qualifiers for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name)


def _called(tests: str) -> set[str]:
    calls = (node.func for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}
