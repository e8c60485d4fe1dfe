"""`freerun init`: from a data file to a run, as a new user goes."""

import json
import string
from pathlib import Path

import pytest
from documented_commands import ROOT, commands_of

from freerun.cli.main import main
from freerun.events.reader import RunReader
from freerun.model.tiny import make_tiny


@pytest.fixture
def with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with data and a model where a recipe expects one."""
    monkeypatch.chdir(tmp_path)
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "intermediate_size": 16}
    make_tiny(tmp_path / "models" / "smollm2", alphabet=string.printable, **sizes)
    rows = [{"question": f"{a} + {b}?", "answer": a + b} for a in range(6) for b in range(6)]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


@pytest.mark.usefixtures("with_data")
def test_the_written_recipe_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "sums.jsonl"]) == 0
    assert 'sums.toml: 36 rows, "question" asks, "answer" answers (number)' in capsys.readouterr().out
    assert main(["train", "sums.toml", "--dry-run"]) == 0
    assert main(["init", "sums.jsonl"]) == 2
    assert '"sums.toml" exists already; name another with --out FILE' in capsys.readouterr().err


@pytest.mark.usefixtures("with_data")
def test_what_cannot_be_read_or_written_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in [
        (["init", "none.jsonl"], "none.jsonl: no such file"),
        (["init", "sums.csv"], "unknown kind of file; name one that ends in .jsonl, .json, .parquet"),
        (["init", "sums.jsonl", "--out", "no/such/dir.toml"], '"no/such/dir.toml" cannot be written'),
        (["train", "sums.jsonl"], '"freerun init sums.jsonl" writes a recipe for it'),
    ]:
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("with_data")
def test_the_written_recipe_trains() -> None:
    assert main(["init", "sums.jsonl", "--out", "first.toml"]) == 0
    assert main(["train", "first.toml", "--train.num_steps", "2", "--eval.num_prompts", "4"]) == 0
    with RunReader(Path("runs/first")) as run:
        assert len(run.steps()) == 2


@pytest.mark.slow
def test_the_page_of_the_first_run_works_as_it_is_written(with_data: Path) -> None:
    """With a tiny model in the place of SmolLM2 and fewer steps; no hub, and no chat, which needs a template."""
    (with_data / "sums.jsonl").rename(with_data / "questions.jsonl")
    every = [c.words[1:] for c in commands_of(ROOT / "docs/first-run.md")]
    commands = [words for words in every if words[0] not in ("data", "model", "chat")]
    assert [words[0] for words in commands] == ["init", "train", "eval", "train", "eval"]
    for words in commands:
        shorter = ("--train.num_steps", "2") if words == ("train", "questions.toml") else ()
        assert main([*words, *shorter]) == 0, words
