"""The README is true: its examples run, its figures are the recorded ones, its tree is the package's."""

import json
import re
import string
from pathlib import Path

import pytest
from documented_commands import ROOT, blocks

from bench.chart import BARS, FIGURES, THEMES, result_of
from bench.harness import RESULTS
from freerun.cli.main import main
from freerun.model.tiny import make_tiny

README = ROOT / "README.md"
TINY_RUN = ["--train.num_steps", "1", "--train.prompts_per_step", "2", "--sampling.group_size", "2"]
FIGURE = re.compile(r"(\d+\.\d)x \((\d+\.\d)-(\d+\.\d), n = (\d+)\)")


@pytest.fixture
def user_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a tiny model where the recipes expect SmolLM2."""
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 16}
    make_tiny(tmp_path / "models" / "smollm2", alphabet=string.printable, **sizes)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_recipe_and_its_grader_train_as_they_are_written(user_directory: Path) -> None:
    (user_directory / "my_task.py").write_text(blocks(README, "python")[0])
    (user_directory / "recipe.toml").write_text(blocks(README, "toml")[0])
    rows = [{"question": f"{a} + {b}", "answer": str(a + b)} for a in range(5) for b in range(5)]
    (user_directory / "my.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["train", "recipe.toml", "--run.name", "mine", *TINY_RUN]) == 0


def test_it_is_read_in_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 130, "details belong into docs/"


def test_every_ratio_is_one_that_was_recorded() -> None:
    results = [each for path in RESULTS.glob("*.json") for each in json.loads(path.read_text()).get("results", ())]
    recorded = {
        (*(f"{value:.1f}" for value in (each["median"], *each["range"])), str(len(each["ours"])))
        for each in results
    }
    stated = FIGURE.findall(README.read_text())
    assert len(stated) >= 4
    assert set(stated) <= recorded


@pytest.mark.parametrize("theme", THEMES)
def test_the_chart_shows_the_recorded_results(theme: str) -> None:
    """If this fails: `python -m bench --table` draws it again."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (FIGURES / f"speed-{theme}.svg").read_text())
    assert [text for text in texts if re.fullmatch(r"\d\.\dx", text)] == [
        f"{result_of(bar)['median']:.1f}x" for bar in reversed(BARS)
    ]
    assert {bar.label for bar in BARS} <= set(texts)


def test_the_tree_names_every_folder_of_the_package() -> None:
    [tree] = re.findall(r"^```\nfreerun/\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    rooms, top = tree.rstrip("\n").rsplit("\n", 1)
    folders = [path.name for path in (ROOT / "freerun").iterdir() if (path / "__init__.py").is_file()]
    assert {*re.findall(r"(\w+)/ ", rooms)} == {*folders}
    assert all((ROOT / name).is_dir() for name in re.findall(r"(\w+)/", top))
