"""Checkpoints against damage and against a disk that fails at any operation: the old one or the new one, whole."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from small_checkpoints import begin, save, state_of

from freerun.controller.checkpoint import (
    Checkpoint,
    CheckpointWriter,
    drop_optimizers,
    find_checkpoint,
    read_checkpoint,
    restore_replaced,
    tidy_for_resume,
)
from freerun.errors import CheckpointError


def resume(directory: Path) -> Checkpoint | None:
    """What `--resume` does with the checkpoints."""
    restore_replaced(directory)
    chosen = find_checkpoint(directory).checkpoint
    tidy_for_resume(directory, chosen)
    return chosen


def version_found(directory: Path) -> int:
    checkpoint = find_checkpoint(directory).checkpoint
    assert checkpoint is not None
    return checkpoint.state.version


def test_a_flipped_bit_anywhere_in_the_manifest_leads_to_the_checkpoint_before(tmp_path: Path) -> None:
    save(tmp_path, 3)
    manifest = save(tmp_path, 6) / "manifest.json"
    whole = manifest.read_bytes()
    generator = random.Random(1)
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << generator.randrange(8)
        manifest.write_bytes(flipped)
        found = version_found(tmp_path)
        # White space is the one thing whose change says the same.
        assert found == 3 or json.loads(flipped) == json.loads(whole), bytes(flipped)
    manifest.write_bytes(whole)
    assert version_found(tmp_path) == 6


@pytest.mark.parametrize(
    "manifest",
    [
        b"", b"{}", b"[]", b"null", b"3", b'"sha256"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000,
        b'{"state.msgpack": null}', b'{"state.msgpack": {}}', b'{"state.msgpack": {"sha256": 1, "bytes": "x"}}',
        b'{"/etc/passwd": {"sha256": "", "bytes": 1}}', b'{"../step-3/state.msgpack": {"sha256": "", "bytes": 1}}',
        b'{"\\u0000": {"sha256": "", "bytes": 1}}', b'{"' + b"x" * 5000 + b'": {"sha256": "", "bytes": 1}}',
        b'{"": {"sha256": "", "bytes": 4096}}', b'{"model": {"sha256": "", "bytes": 4096}}',
    ],
)  # fmt: skip
def test_a_manifest_of_another_shape_leads_to_the_checkpoint_before(tmp_path: Path, manifest: bytes) -> None:
    save(tmp_path, 3)
    newest = save(tmp_path, 6)
    (newest / "manifest.json").write_bytes(manifest)
    found = find_checkpoint(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.state.version == 3
    assert str(newest) in str(found.damage[0])


@pytest.mark.parametrize(
    "left_out", ["state.msgpack", "optimizer.safetensors", "model/config.json", "model/model.safetensors"]
)
def test_a_manifest_that_leaves_out_a_needed_file_is_refused(tmp_path: Path, left_out: str) -> None:
    manifest = save(tmp_path, 3) / "manifest.json"
    entries = json.loads(manifest.read_text())
    del entries[left_out]
    manifest.write_text(json.dumps(entries))
    with pytest.raises(CheckpointError, match=r"manifest\.json: does not list "):
        read_checkpoint(tmp_path / "step-3")


def test_a_manifest_that_reaches_outside_its_directory_is_refused(tmp_path: Path) -> None:
    manifest = save(tmp_path, 3) / "manifest.json"
    entries = json.loads(manifest.read_text())
    for name in ("../other", str(tmp_path / "other"), "model/../../other"):
        manifest.write_text(json.dumps(entries | {name: entries["state.msgpack"]}))
        with pytest.raises(CheckpointError, match="outside the checkpoint"):
            read_checkpoint(tmp_path / "step-3")


def replace_by_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("a file")


def damage_state(directory: Path) -> None:
    (directory / "state.msgpack").unlink()
    (directory / "state.msgpack").mkdir()  # cannot be read, not even by root


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "model" / "model.safetensors").unlink(), "No such file"),
        (lambda d: (d / "model" / "model.safetensors").write_bytes(b"x"), "sha256 differs"),
        (damage_state, "differs|Is a directory"),
        (lambda d: (d / "manifest.json").unlink(), "its manifest cannot be read"),
        (replace_by_a_file, "its manifest cannot be read"),
    ],
)
def test_a_file_that_is_missing_changed_or_unreadable_leads_to_the_checkpoint_before(
    tmp_path: Path, damage: Callable[[Path], Any], reason: str
) -> None:
    save(tmp_path, 3)
    damage(save(tmp_path, 6))
    found = find_checkpoint(tmp_path)
    assert found.checkpoint is not None
    assert found.checkpoint.state.version == 3
    with pytest.raises(CheckpointError, match=reason):
        raise found.damage[0]


def test_a_checkpoint_copied_under_another_version_is_not_taken_for_it(tmp_path: Path) -> None:
    shutil.copytree(save(tmp_path, 3), tmp_path / "step-9")
    [damage] = find_checkpoint(tmp_path).damage
    assert "step-9: holds version 3" in str(damage)
    chosen = resume(tmp_path)
    assert chosen is not None
    assert chosen.directory == tmp_path / "step-3"
    assert read_checkpoint(chosen.directory).state.version == 3
    assert (tmp_path / "step-9.damaged").is_dir()


def test_a_checkpoint_whose_optimizer_was_dropped_is_whole_but_cannot_be_continued(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save(tmp_path, 6)
    assert read_checkpoint(tmp_path / "step-6").has_optimizer
    drop_optimizers(tmp_path)
    drop_optimizers(tmp_path)
    assert not list(tmp_path.rglob("optimizer.safetensors"))
    for version in (3, 6):
        assert not read_checkpoint(tmp_path / f"step-{version}").has_optimizer


def test_a_finished_run_drops_the_optimizers_of_whole_checkpoints_though_an_older_one_is_damaged(
    tmp_path: Path,
) -> None:
    save(tmp_path, 3)
    save(tmp_path, 6)
    (tmp_path / "step-3" / "manifest.json").write_text("{")
    drop_optimizers(tmp_path)
    assert not read_checkpoint(tmp_path / "step-6").has_optimizer
    assert (tmp_path / "step-3" / "optimizer.safetensors").is_file()


class Killed(BaseException):
    """The process is gone: no operation after it happens either."""


class FailingDisk:
    """Lets operations on files pass, except for the N-th."""

    def __init__(self, nth: int, failure: int | None, *, stays: bool = False) -> None:
        self.count = 0
        self._nth = nth
        self._failure = failure
        self._stays = stays
        """Whether all later ones fail too."""

    def operate(self) -> None:
        self.count += 1
        if self.count == self._nth or (self.count > self._nth and (self._stays or self._failure is None)):
            if self._failure is None:
                raise Killed
            raise OSError(self._failure, os.strerror(self._failure))

    @contextmanager
    def mounted(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Stand between Python and the system for the operations that change or sync files."""
        with patch.context() as patched:
            for name in ("rename", "mkdir", "unlink", "rmdir", "fsync", "open"):
                patched.setattr(os, name, self._watched(getattr(os, name)))
            patched.setattr(io, "open", self._watched_open(io.open))
            yield

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.operate()
            return function(*args, **options)

        return call

    def _watched_open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.operate()
            file = function(*args, **options)
            return TornFile(file, self) if file.writable() else file

        return call


class TornFile:
    """A file opened for writing; a write that fails leaves half of what it was given."""

    def __init__(self, file: Any, disk: FailingDisk) -> None:
        self._file = file
        self._disk = disk

    def __enter__(self) -> TornFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: Any) -> int:
        try:
            self._disk.operate()
        except BaseException:
            self._file.write(content[: len(content) // 2])
            raise
        return int(self._file.write(content))


def test_a_file_that_may_not_be_read_leads_to_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 3)
    save(tmp_path, 6)
    for nth in range(1, 100):
        disk = FailingDisk(nth, errno.EACCES)
        with disk.mounted(monkeypatch):
            found = version_found(tmp_path)
        if disk.count < nth:
            assert found == 6
            return
        assert found == 3
    pytest.fail("reading never ended")


FAILURES = {
    "killed": (None, False),
    "EIO once": (errno.EIO, False),
    "EIO from then on": (errno.EIO, True),
    "disk full": (errno.ENOSPC, True),
}


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("version", [6, 3], ids=["new version", "version that exists"])
@pytest.mark.parametrize("kind", FAILURES)
def test_whichever_operation_of_sealing_fails_one_whole_checkpoint_is_resumed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, version: int, keep: int
) -> None:
    failure, stays = FAILURES[kind]
    for nth in range(1, 1000):
        directory = tmp_path / str(nth)
        save(directory, 3, keep=keep)
        writer = begin(directory, version, seconds=7.0)
        disk, sealed = FailingDisk(nth, failure, stays=stays), False
        with suppress(Killed, CheckpointError), disk.mounted(monkeypatch):
            asyncio.run(writer.seal(keep=keep))
            sealed = True
        chosen = resume(directory)
        assert chosen is not None, f"operation {nth} lost both"
        found = (chosen.state.version, chosen.state.seconds)
        assert found == (version, 7.0) if sealed else found in ((3, 0.0), (version, 7.0))
        assert {path.name for path in directory.iterdir()} <= {"step-3", f"step-{version}"}
        save(directory, 8, keep=keep)
        assert version_found(directory) == 8
        if disk.count < nth:
            assert nth > 20, "the operations were not counted"
            return
    pytest.fail("sealing never ended")


def test_a_full_disk_is_said_with_the_path_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begin(tmp_path, 3)
    with (
        pytest.raises(CheckpointError, match=r"step-3: .*No space left on device.*; free disk space.*resume"),
        FailingDisk(1, errno.ENOSPC, stays=True).mounted(monkeypatch),
    ):
        asyncio.run(writer.seal(keep=2))
    with (
        pytest.raises(CheckpointError, match=r"step-6: .*No space left on device"),
        FailingDisk(1, errno.ENOSPC, stays=True).mounted(monkeypatch),
    ):
        CheckpointWriter(tmp_path, state_of(6))
