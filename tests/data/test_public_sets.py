"""The public data sets that recipes name: how a clone gets them, and what a recipe without them says."""

import dataclasses
import gzip
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from code_tasks import data_directory

from freerun.cli.main import main
from freerun.config.data import DataConfig
from freerun.config.load import load_recipe
from freerun.data import public_sets
from freerun.data.hub_files import file_of
from freerun.data.public_sets import PUBLIC_SETS, PublicFile, PublicSet, fetch, has_file, set_of
from freerun.data.tasks import check_task, load_prompts
from freerun.errors import ConfigError, DataError

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
CONTENT = b'{"question": "1 + 1?", "answer": "2"}\n'


def published(directory: Path, name: str = "train.jsonl", content: bytes = CONTENT) -> PublicFile:
    """A file at an address of this machine."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(content)
    plain = gzip.decompress(content) if name.endswith(".gz") else content
    url = (directory / name).as_uri()
    return PublicFile(url, hashlib.sha256(plain).hexdigest(), "train")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_data_of_a_recipe_are_named_as_on_the_hub_and_can_be_fetched(path: Path) -> None:
    data = load_recipe(path, []).data
    for name in filter(None, [file for part in data.parts.values() for file in (part.path, part.held_out_path)]):
        file = file_of(name)
        public = PUBLIC_SETS[set_of(file)]
        assert name.partition(":")[0] == public.hub_name
        assert file.parent.parent == Path("data")
        assert f"freerun data get {public.hub_name} " in path.read_text()
        assert f"licence {public.licence}\n" in path.read_text()


def test_a_recipe_without_its_data_says_how_to_fetch_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    remedy = (
        '; "freerun data get openai/gsm8k" fetches it from openai/grade-school-math on GitHub, MIT; without '
        "internet access, put the file there by hand, or name another"
    )
    for path, what in {
        "openai/gsm8k": "is not here: data/gsm8k/train.jsonl is missing",
        "openai/gsm8k:test": "is not here: data/gsm8k/test.jsonl is missing",
        "data/gsm8k/train.jsonl": "is not a file",
    }.items():
        with pytest.raises(ConfigError) as caught:
            check_task(DataConfig(path=path))
        assert str(caught.value) == f'config: data.path = "{path}" {what}{remedy}'
    with pytest.raises(ConfigError, match=r'"data/gsm8k/mine\.jsonl" is not a file; name another'):
        check_task(DataConfig(path="data/gsm8k/mine.jsonl"))
    with pytest.raises(DataError, match='openai/gsm8k has no split "dev"; it has "train", "test"'):
        check_task(DataConfig(path="openai/gsm8k:dev"))


def test_every_checksum_is_that_of_the_file_the_recipes_were_tried_with() -> None:
    directory = data_directory()
    if directory is None:
        pytest.skip("the public data sets are not here: set FREERUN_DATA to the directory that holds them")
    for name, public in PUBLIC_SETS.items():
        assert all(has_file(file, directory / name) for file in public.files)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_reads_its_fetched_data(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [part for part in load_recipe(path, []).data.parts.values() if part.task == "file"]
    directory = data_directory()
    if directory is None and parts:
        pytest.skip("the public data sets are not here: set FREERUN_DATA to the directory that holds them")
    monkeypatch.chdir(tmp_path)
    if directory is not None:
        Path("data").symlink_to(directory)
    for part in parts:
        check_task(part)
        prompts = load_prompts(part)
        assert len(prompts.training) > 100
        assert prompts.held_out


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_a_set_is_fetched_checked_and_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content = gzip.compress(CONTENT) if name.endswith(".gz") else CONTENT
    sums = PublicSet(
        "someone/sums", "sums", "this machine", "MIT", (published(tmp_path / "there", name, content),)
    )
    monkeypatch.setitem(public_sets.PUBLIC_SETS, "sums", sums)
    monkeypatch.chdir(tmp_path)
    assert main(["data", "sums"]) == 0
    assert [path.name for path in Path("data/sums").iterdir()] == ["train.jsonl"]
    assert Path("data/sums/train.jsonl").read_bytes() == CONTENT
    assert capsys.readouterr().out == "sums: sums; from this machine, licence MIT\n  data/sums/train.jsonl\n"
    assert main(["data", "sums"]) == 0
    assert "data/sums/train.jsonl is already there" in capsys.readouterr().out
    Path("data/sums/train.jsonl").write_text("other")
    assert main(["data", "sums"]) == 2
    assert "is not the published file; move it away" in capsys.readouterr().err


def test_a_file_with_another_checksum_is_not_kept(tmp_path: Path) -> None:
    other = dataclasses.replace(published(tmp_path / "there"), sha256="0" * 64)
    with pytest.raises(DataError, match=r"is not the published file \(sha256 \w{64}, expected 0{64}\)"):
        fetch(other, tmp_path / "here")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("name", ["gone.jsonl", "broken.jsonl.gz", "damaged.jsonl.gz"])
def test_a_file_that_cannot_be_fetched_can_be_put_there_by_hand(tmp_path: Path, name: str) -> None:
    (tmp_path / "broken.jsonl.gz").write_bytes(gzip.compress(CONTENT)[:-4])
    (tmp_path / "damaged.jsonl.gz").write_bytes(gzip.compress(CONTENT)[:10] + b"\xff" * 30)
    file = PublicFile((tmp_path / name).as_uri(), "0" * 64, "train")
    both_ways = (
        rf"run this command where there is internet access and copy .*here/{file.name} here, or download it"
    )
    with pytest.raises(DataError, match=rf"{name} cannot be fetched .*; {both_ways} .* and put it there"):
        fetch(file, tmp_path / "here")


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_no_more_is_read_or_unpacked_than_a_set_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(public_sets, "MAX_DOWNLOAD_BYTES", 1 << 20)
    content = bytes(2 << 20)
    file = published(tmp_path / "there", name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=r"cannot be fetched \(more than 1 MiB\)"):
        fetch(file, tmp_path / "here")


def test_a_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    (tmp_path / f".train.jsonl.{os.getpid()}").symlink_to(precious)
    with pytest.raises(DataError, match="cannot be written"):
        fetch(published(tmp_path / "there"), tmp_path)
    assert precious.read_text() == "as it was"


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file in the way")
    with pytest.raises(DataError, match=r"data/sums/train\.jsonl cannot be written \(.*\); run freerun where"):
        fetch(published(tmp_path / "there"), tmp_path / "data" / "sums")


def test_without_a_name_the_sets_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data"]) == 0
    assert capsys.readouterr().out.count("not here; fetch it with: freerun data ") == len(PUBLIC_SETS)
    assert main(["data", "gsm8"]) == 2
    assert 'no public data set "gsm8"; did you mean "gsm8k"?' in capsys.readouterr().err


def test_get_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    file = published(tmp_path / "there")
    monkeypatch.setitem(PUBLIC_SETS, "gsm8k", dataclasses.replace(PUBLIC_SETS["gsm8k"], files=(file,)))
    assert main(["data", "get", "gsm8k"]) == 0
    assert Path("data/gsm8k/train.jsonl").read_bytes() == CONTENT
    assert main(["data", "gsm8k"]) == 0
    assert "is already there" in capsys.readouterr().out
    assert main(["data", "get", "openai/gsm8k", "--split", "train"]) == 0
    assert "is already there" in capsys.readouterr().out
    assert main(["data", "get"]) == 2
    assert "name a data set" in capsys.readouterr().err
