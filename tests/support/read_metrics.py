"""Which metrics of a step the rules of health read."""

import ast
from pathlib import Path

from freerun.events import learning_rules, running_rules

READERS = ("mean_of", "values_of", "newest", "first_of")


def names_read_by_rules() -> set[str]:
    """The metrics that rules of health ask for, by their code."""
    names = set()
    for module in (learning_rules, running_rules):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in READERS:
                names |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return names
