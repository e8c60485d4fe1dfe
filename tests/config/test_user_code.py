"""Functions of the user's: found beside the recipe, without getting in the way of other imports."""

import sys
from pathlib import Path

import pytest

from freerun.config.user_code import import_named
from freerun.errors import ConfigError


@pytest.fixture(autouse=True)
def _in_the_users_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_the_current_directory_is_searched_last() -> None:
    Path("a_task_of_mine.py").write_text("def score(): return 3\n")
    assert import_named("a_task_of_mine:score", setting="reward.grader")[1]() == 3
    assert sys.path[-1] == str(Path.cwd())


def test_a_file_whose_name_is_taken_is_refused_by_name() -> None:
    Path("colorsys.py").write_text("def score(): return 3\n")
    with pytest.raises(
        ConfigError, match=r"colorsys.py in this directory is hidden by .*/colorsys.py\); rename yours"
    ):
        import_named("colorsys:score", setting="reward.grader")


def test_a_package_whose_name_is_taken_is_refused_by_name() -> None:
    Path("colorsys").mkdir()
    Path("colorsys/__init__.py").write_text("")
    Path("colorsys/inner.py").write_text("def score(): return 3\n")
    with pytest.raises(ConfigError, match=r"colorsys/__init__.py in this directory is hidden by .*rename yours"):
        import_named("colorsys.inner:score", setting="reward.grader")


@pytest.mark.parametrize(
    ("name", "meant"), [("g2.py:f", "g2:f"), ("./g2.py:f", "g2:f"), ("my/graders.py:f", "my.graders:f")]
)
def test_a_file_name_leads_to_the_name_of_its_module(name: str, meant: str) -> None:
    Path("g2.py").write_text("def f(): pass\n")
    with pytest.raises(ConfigError) as caught:
        import_named(name, setting="reward.grader")
    assert str(caught.value) == (
        f'config: reward.grader: "{name}" names a file, not a module; leave out .py: "{meant}"'
    )


def test_a_module_that_fails_by_itself_is_not_said_to_be_missing() -> None:
    Path("a_broken_task.py").write_text("import a_package_nobody_has\n")
    with pytest.raises(ConfigError, match=r"No module named 'a_package_nobody_has'; fix a_broken_task$"):
        import_named("a_broken_task:f", setting="data.task")
