"""Words that this project avoids, each with the reason: prose to skim, and one name for each thing."""

import re
from collections.abc import Iterator

import pytest
from documented_commands import PAGES, ROOT, name_of

AVOIDED = {
    r"problems?": 'the glossary says "prompt"',
    r"whoever|nobody": "name the process or the person",
    r"whatever": 'say "any" or "all", or name the cases',
    r"(go|goes|went|going) on": "continue",
    r"for ever": "forever",
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again",
    r"lets? go of": "release",
    r"shall": "must, or the plain verb",
    r"turn(s|ed)? (it|the \w+) round": "reverse",
    r"a (process|task|key|session|rule) of its own": "its own process, or a separate one",
    r"manners|heavy guest": "say what it does",
}
ALLOWED = re.compile(
    r"[Ww]ord[ -]problem|\"problem\"|`nobody`|template = \"{problem}\"|Solve the problem|test_\w+"
)
"""A kind of text and its task, a column, a Unix user, a field and the prompt of a data set, names of tests."""
NOT_PROMPTS = "freerun/sandbox/"
"""What fails when a sandbox is set up is a problem."""
FILES = [
    *PAGES,
    *(
        path
        for room, kind in (("freerun", "py"), ("bench", "py"), ("examples", "py"), ("recipes", "toml"))
        for path in sorted((ROOT / room).rglob(f"*.{kind}"))
    ),
]


def lines_with(words: str) -> Iterator[str]:
    avoided = re.compile(rf"\b({words})\b", re.IGNORECASE)
    for path in FILES:
        if "problem" in words and name_of(path).startswith(NOT_PROMPTS):
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if avoided.search(ALLOWED.sub("", line)):
                yield f"{name_of(path)}:{number}: {line.strip()}"


@pytest.mark.parametrize("words", AVOIDED)
def test_prose_is_plain(words: str) -> None:
    assert list(lines_with(words)) == [], f"instead: {AVOIDED[words]}"
