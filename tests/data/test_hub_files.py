"""Data sets by their name on the hub: written to files by `freerun data get`, and found there by a recipe."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stub_hub

from freerun.cli.main import main
from freerun.config.data import DataConfig
from freerun.config.recipe import Recipe
from freerun.data.hub_files import fetch_rows, file_of, is_hub_name
from freerun.data.tasks import check_task, load_prompts
from freerun.errors import ConfigError, DataError
from freerun.session.provenance import hash_of_files, provenance_of

ROWS = [{"question": f"{n} + {n}?", "answer": str(2 * n), "hints": ["add", None], "share": 0.5} for n in range(10)]


def lines(rows: list[dict[str, object]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.import_module("datasets").config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def here(in_tmp: Path) -> Path:
    """A folder that the library takes for the data set of the same name."""
    folder = in_tmp / "someone" / "numbers"
    folder.mkdir(parents=True)
    for split, rows in {"train": ROWS, "test": ROWS[:3]}.items():
        (folder / f"{split}.jsonl").write_bytes(lines(rows))
    return folder


def test_the_splits_of_a_data_set_become_files_that_a_recipe_reads(here: Path) -> None:
    assert fetch_rows("someone/numbers", split="test") == [Path("data/someone/numbers/test.jsonl")]
    assert [path.name for path in Path("data/someone/numbers").iterdir()] == ["test.jsonl"]
    assert len(fetch_rows("someone/numbers")) == 2
    here.rename("elsewhere")
    here.parent.rmdir()
    prompts = load_prompts(DataConfig(path="someone/numbers", held_out_path="someone/numbers:test"))
    assert [prompt.key for prompt in prompts.training] == [f"train.jsonl:{n}" for n in range(1, 11)]
    assert [prompt.answer for prompt in prompts.training] == [row["answer"] for row in ROWS]
    assert len(prompts.held_out) == 3
    written = Path("data/someone/numbers/train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == ROWS


def test_a_file_that_is_there_is_kept(here: Path) -> None:
    [test] = fetch_rows("someone/numbers", split="test")
    test.write_text("mine")
    fetch_rows("someone/numbers", split="test")
    fetch_rows("someone/numbers")
    assert test.read_text() == "mine"


@pytest.mark.usefixtures("in_tmp")
def test_a_file_and_a_folder_are_no_names_on_the_hub() -> None:
    assert file_of("someone/numbers") == Path("data/someone/numbers/train.jsonl")
    assert file_of("someone/numbers:dev") == Path("data/someone/numbers/dev.jsonl")
    for path in ("numbers", "data/numbers", "mine/train.jsonl", "a/b/c", "../numbers", "someone/numbers:../x"):
        assert not is_hub_name(path)
        assert file_of(path) == Path(path)
    Path("someone").mkdir()
    assert not is_hub_name("someone/numbers"), "its owner is a folder here"
    Path("openai").mkdir()
    assert file_of("openai/gsm8k") == Path("data/gsm8k/train.jsonl"), "a known one is always that"
    Path("openai/gsm8k").write_text("{}")
    assert file_of("openai/gsm8k") == Path("openai/gsm8k")


@pytest.mark.usefixtures("in_tmp")
def test_a_recipe_without_its_file_names_both_ways_to_get_it() -> None:
    with pytest.raises(ConfigError) as caught:
        check_task(DataConfig(path="someone/numbers", held_out_path="someone/numbers:dev"))
    assert str(caught.value) == (
        'config: data.path = "someone/numbers" is not here: data/someone/numbers/train.jsonl is missing; '
        '"freerun data get someone/numbers" fetches it from the Hugging Face hub; without internet access, put '
        "the file there by hand, or name another"
    )
    Path("data/someone/numbers").mkdir(parents=True)
    Path("data/someone/numbers/train.jsonl").write_bytes(lines(ROWS))
    with pytest.raises(ConfigError, match=r'data\.held_out_path .*"freerun data get someone/numbers --split dev"'):
        check_task(DataConfig(path="someone/numbers", held_out_path="someone/numbers:dev"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["numbers"], 'no public data set "numbers"; there are gsm8k, .*, and OWNER/NAME is one of the hub'),
        (["someone/numbers:train"], 'no public data set "someone/numbers:train"; there are'),
        (["someone/numbers", "--split", "../x"], r"--split \.\./x: not a name"),
        (["someone/numbers", "--configuration", "a/b"], "--configuration a/b: not a name"),
        (["openai/gsm8k", "--split", "dev"], 'openai/gsm8k has no split "dev"'),
    ],
)
@pytest.mark.usefixtures("in_tmp")
def test_what_names_no_data_set_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "get", *words]) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.usefixtures("in_tmp")
def test_a_row_that_json_cannot_hold_is_named_and_no_file_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": "1?"}, {"question": object()}]
    monkeypatch.setattr(importlib.import_module("datasets"), "load_dataset", lambda *_, **__: {"train": rows})
    with pytest.raises(
        DataError, match=r"train\.jsonl:2: cannot be written as JSON \(.*\); read it with data\.task"
    ):
        fetch_rows("someone/numbers")
    assert list(Path("data/someone/numbers").iterdir()) == []


@pytest.mark.usefixtures("in_tmp")
def test_the_file_that_a_run_reads_is_in_its_provenance() -> None:
    train = Path("data/someone/numbers/train.jsonl")
    train.parent.mkdir(parents=True)
    train.write_bytes(lines(ROWS))
    provenance = provenance_of(Recipe(data=DataConfig(path="someone/numbers")))
    assert provenance.task_sha256 == hash_of_files([train])


def freerun(address: str, home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`freerun data get` in a process whose hub is at an address; the libraries read it when they are imported."""
    return subprocess.run(
        [sys.executable, "-m", "freerun", "data", "get", *words],
        env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(home / "hf"), **environment},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
def test_a_data_set_is_fetched_from_the_hub_with_every_split(tmp_path: Path) -> None:
    with stub_hub.serving({"train.jsonl": lines(ROWS), "test.jsonl": lines(ROWS[:3])}) as address:
        got = freerun(address, tmp_path, stub_hub.NAME, HF_HUB_OFFLINE="0")
    assert got.returncode == 0, got.stderr
    assert got.stdout == f"{stub_hub.NAME}\n" + "".join(
        f"  data/{stub_hub.NAME}/{split}.jsonl\n" for split in ("train", "test")
    )
    written = (tmp_path / "data" / stub_hub.NAME / "test.jsonl").read_text()
    assert [json.loads(line) for line in written.splitlines()] == ROWS[:3]


@pytest.mark.slow
def test_where_the_hub_cannot_be_reached_both_ways_are_named(tmp_path: Path) -> None:
    got = freerun("http://127.0.0.1:9", tmp_path, "someone/numbers", HF_HUB_OFFLINE="1")
    assert got.returncode == 2
    [line] = [line for line in got.stderr.splitlines() if "someone/numbers cannot be fetched" in line]
    assert "run this command where the hub can be reached and copy data/someone/numbers here" in line
    assert line.endswith(
        "put a file of its rows at data/someone/numbers/train.jsonl by hand: one JSON object a line"
    )
    assert not (tmp_path / "data").exists()
