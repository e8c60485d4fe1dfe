"""Shipped recipes: found by name from any directory, listed and printed; files of the same name win."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from freerun.cli.main import main
from freerun.config.load import load_recipe
from freerun.config.shipped import recipe_file, shipped_recipes, summary_of
from freerun.errors import ConfigError
from freerun.model.tiny import make_tiny
from freerun.session.evaluation_job import find_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
MAX_WIDTH = 140
"""Columns of the listing; a line that wraps is no list."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory without recipes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given", ["times-tables", "times-tables.toml", Path("times-tables")])
def test_a_shipped_recipe_is_found_by_its_name(given: str | Path) -> None:
    assert recipe_file(given) == RECIPES / "times-tables.toml"
    assert load_recipe(Path(given), []) == load_recipe(RECIPES / "times-tables.toml", [])


@pytest.mark.parametrize("name", ["times-tables", "times-tables.toml"])
def test_a_file_of_the_same_name_wins(name: str) -> None:
    Path(name).write_text("[train]\nnum_steps = 7\n")
    recipe = load_recipe(Path(name), [])
    assert (recipe.train.num_steps, recipe.run.name) == (7, "times-tables")


def test_a_directory_of_the_same_name_does_not_hide_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Models and data are often named after their task."""
    make_tiny(Path("euclid"), alphabet="abc")
    assert main(["train", "euclid", "--model.path", "none"]) == 2
    assert 'model.path = "none" is not a model directory' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("tims-tables", 'did you mean "times-tables"?'),
        ("euclid-smal", 'did you mean "euclid-small" or "euclid"?'),
        ("recipes/svamp.toml", 'did you mean "svamp"?'),
        ("xyz", '"freerun recipes" lists the shipped ones'),
    ],
)
def test_a_name_that_is_neither_is_answered_with_the_nearest(
    given: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", given]) == 2
    assert f'there is no recipe "{given}"; {remedy}' in capsys.readouterr().err


def test_every_recipe_is_listed_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(file.stem for file in RECIPES.glob("*.toml"))
    assert all(len(line) <= MAX_WIDTH and line.endswith(".") for line in lines), (
        "one sentence or more, in one line"
    )
    assert summary_of(RECIPES / "svamp.toml") in lines[list(shipped_recipes()).index("svamp")]


def test_a_printed_recipe_is_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "maths-mixture"]) == 0
    Path("mine.toml").write_text(capsys.readouterr().out)
    mine, theirs = (load_recipe(Path(name), ["--run.name", "x"]) for name in ("mine.toml", "maths-mixture"))
    assert mine == theirs


def test_a_recipe_that_cannot_be_printed_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "gsm"]) == 2
    assert 'no shipped recipe "gsm"; did you mean "gsm8k"' in capsys.readouterr().err


def test_a_mixture_names_shipped_recipes_and_files() -> None:
    assert list(load_recipe(Path("maths-mixture"), []).data.parts) == ["svamp", "times-tables"]
    shutil.copy(RECIPES / "gsm8k.toml", "own.toml")
    Path("mixed.toml").write_text('[data]\nmixture = ["times-tables", "own.toml"]\n')
    assert list(load_recipe(Path("mixed.toml"), []).data.parts) == ["times-tables", "own"]
    Path("twice.toml").write_text(f'[data]\nmixture = ["svamp", "{RECIPES}/svamp.toml"]\n')
    with pytest.raises(ConfigError, match='two recipes named "svamp"'):
        load_recipe(Path("twice.toml"), [])
    Path("unknown.toml").write_text('[data]\nmixture = ["swamp"]\n')
    with pytest.raises(ConfigError, match='did you mean "svamp"'):
        load_recipe(Path("unknown.toml"), [])


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("svamp", {"task": "file", "path": "ChilleD/SVAMP"}),
        ("times-tables.toml", {"task": "times-tables", "max_prompt_tokens": 64}),
    ],
)
def test_eval_takes_the_names_of_shipped_recipes(task: str, expected: dict[str, Any]) -> None:
    recipe = find_recipe(task, None, [])
    assert recipe == load_recipe(Path(task), [])
    assert {key: getattr(recipe.data, key) for key in expected} == expected


def test_eval_prefers_a_built_in_task_and_a_data_file_to_a_recipe_of_the_same_name() -> None:
    assert find_recipe("times-tables", None, []).data.task == "times-tables"
    assert not find_recipe("times-tables", None, []).sampling.stop, "the recipe has one"
    Path("svamp").write_text("{}")
    assert find_recipe("svamp", None, []).data.path == "svamp"


def test_a_study_takes_the_name_of_a_shipped_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "euclid-small", "--over", "buffer.max_staleness=0,4", "--seeds", "1", "--dry-run"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert len(commands) == 3
    assert all("freerun train euclid-small --" in command for command in commands)
    assert "studies/euclid-small-max_staleness" in commands[0]
