"""docs/troubleshooting.md has a section for each rule of health, and none for a rule that is gone."""

import re

from documented_commands import ROOT

from freerun.config.load import key_types
from freerun.events.health import RULES

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def test_each_rule_has_its_section() -> None:
    named = re.findall(r"^### .*\(`(\w+)`\)$", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(RULES)


def test_no_section_is_empty() -> None:
    sections = re.split(r"^### .*$", PAGE, flags=re.MULTILINE)[1:]
    assert all(len(section.split()) > 10 for section in sections)


def test_every_setting_that_the_page_names_exists() -> None:
    sections = {key.partition(".")[0] for key in key_types()}
    named = re.findall(r"`(?:--)?([a-z]+\.[a-z_]+)\b", PAGE)
    assert {key for key in named if key.partition(".")[0] in sections} <= key_types().keys()
