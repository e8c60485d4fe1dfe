"""Files beside the weights: copied into runs and checkpoints, and never from outside the model directory."""

import json
import os
import stat
from pathlib import Path

import pytest

from freerun.errors import ModelError
from freerun.model.companions import check_companions, copy_companions, copy_tokenizer

CONFIG = json.dumps({"model_type": "llama", "torch_dtype": "bfloat16", "eos_token_id": 2})


def make_source(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(CONFIG)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("is_relative", [True, False])
def test_a_link_out_of_the_model_directory_is_refused_and_nothing_is_copied(
    tmp_path: Path, is_relative: bool
) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("a private key")
    source = make_source(tmp_path / "model")
    (source / "merges.txt").symlink_to("../id_rsa" if is_relative else secret)
    (tmp_path / "run").mkdir()
    reason = r"merges\.txt: a symbolic link to .*id_rsa, outside the model directory"
    for copy in (copy_companions, copy_tokenizer):
        with pytest.raises(ModelError, match=reason):
            copy(source, tmp_path / "run")
    with pytest.raises(ModelError, match="outside the model directory"):
        check_companions(source)
    assert not any("private" in path.read_text() for path in (tmp_path / "run").iterdir())


def test_links_within_the_directory_and_to_the_directory_are_followed(tmp_path: Path) -> None:
    source = make_source(tmp_path / "model")
    (source / "tokenizer.json").rename(source / "kept.json")
    (source / "tokenizer.json").symlink_to("kept.json")
    (tmp_path / "alias").symlink_to(source)
    copy_companions(tmp_path / "alias", tmp_path / "run")
    assert (tmp_path / "run" / "tokenizer.json").read_text() == "{}"
    assert not (tmp_path / "run" / "tokenizer.json").is_symlink()


def test_a_snapshot_of_the_hugging_face_cache_is_copied_from_its_blobs(tmp_path: Path) -> None:
    model = tmp_path / "hub" / "models--org--name"
    snapshot, own, shared = model / "snapshots" / "0123", model / "blobs", tmp_path / "hub" / "blobs" / "ab"
    for folder in (snapshot, own, shared):
        folder.mkdir(parents=True)
    (own / "f00d").write_text(CONFIG)
    (shared / ("ab" * 32)).write_text("{}")
    (own / "beef").symlink_to(Path("../../blobs/ab") / ("ab" * 32))
    (snapshot / "config.json").symlink_to("../../blobs/f00d")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/beef")
    copy_companions(snapshot, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["dtype"] == "float32"
    assert (tmp_path / "run" / "tokenizer.json").read_text() == "{}"

    (tmp_path / "secret").write_text("secret")
    (own / "evil").symlink_to(tmp_path / "secret")
    (snapshot / "merges.txt").symlink_to("../../blobs/evil")
    with pytest.raises(ModelError, match=r"merges\.txt: a symbolic link to .*secret"):
        copy_companions(snapshot, tmp_path / "again")


def test_blobs_that_are_a_link_themselves_are_refused(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "key").write_text("secret")
    model = tmp_path / "models--org--name"
    snapshot = make_source(model / "snapshots" / "0123")
    (model / "blobs").symlink_to(tmp_path / "home")
    (snapshot / "merges.txt").symlink_to("../../blobs/key")
    with pytest.raises(ModelError, match="outside the model directory"):
        check_companions(snapshot)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    for name, make in (("pipe", os.mkfifo), ("folder", os.mkdir), ("loop", lambda path: os.symlink(path, path))):
        source = make_source(tmp_path / name)
        make(source / "vocab.json")
        with pytest.raises(ModelError, match=r"vocab\.json: not a regular file"):
            copy_companions(source, tmp_path / "run")


def test_a_copy_is_never_open_to_more_users_than_its_original(tmp_path: Path) -> None:
    source = make_source(tmp_path / "model")
    (source / "config.json").chmod(0o600)
    (source / "tokenizer.json").chmod(0o444)
    before = os.umask(0o000)
    try:
        copy_companions(source, tmp_path / "run")
        copy_companions(source, tmp_path / "run")  # again, over the copies
        assert mode_of(tmp_path / "run" / "config.json") == 0o600
        assert mode_of(tmp_path / "run" / "tokenizer.json") == 0o644
        os.umask(0o077)
        copy_companions(source, tmp_path / "tight")
        assert mode_of(tmp_path / "tight" / "tokenizer.json") == 0o600
    finally:
        os.umask(before)
