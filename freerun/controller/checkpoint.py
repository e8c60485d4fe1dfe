"""Checkpoints of a whole run: model, optimizer and the controller's state of one version, or nothing.

    runs/<name>/checkpoints/step-20/
        model/                   Hugging Face directory, loads in `transformers`
        optimizer.safetensors    AdamW's moments
        state.msgpack            version, data cursor, buffered groups, prompts in flight
        manifest.json            sha256 and size of every file above (`manifest.py`)

Written under a temporary name, synced, hashed, then renamed: a directory that is there is whole, and the
manifest tells if it was damaged later. The newest `keep` stay.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from freerun.buffer.groups import BufferState
from freerun.controller.manifest import (
    MANIFEST_FILE,
    Manifest,
    describe_files,
    read_manifest,
    sync,
    verify,
    write_manifest,
)
from freerun.errors import CheckpointError
from freerun.types import decoder_for, encode

MODEL_DIRECTORY = "model"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.msgpack"


class ControllerState(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the controller needs to go on as if nothing had happened."""

    version: int
    cursor: int
    """Ordinal of the next prompt that was never started."""
    buffer: BufferState
    seconds: float
    """The run's clock."""
    data_fingerprint: str
    """Of the training prompts in their order: the ordinals above mean these prompts and no others."""
    resting: dict[str, int] = {}
    """Problems that the curriculum passes over, by key, and for how many visits yet."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files match its manifest."""

    directory: Path
    state: ControllerState
    has_optimizer: bool
    """False when it was dropped at the end of a finished run: the model can be used, the run not continued."""

    @property
    def model_directory(self) -> Path:
        return self.directory / MODEL_DIRECTORY

    @property
    def optimizer_file(self) -> Path:
        return self.directory / OPTIMIZER_FILE


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint, and why each newer one was passed over, newest first."""

    checkpoint: Checkpoint | None
    damage: tuple[CheckpointError, ...] = ()


class CheckpointWriter:
    """One checkpoint being written: opened when the state is captured, sealed when all files are there."""

    def __init__(self, directory: Path, state: ControllerState) -> None:
        self.directory = directory / f".step-{state.version}.writing"
        self._final = directory / f"step-{state.version}"
        self._encoded_state = encode(state)
        with _disk_errors(self._final):
            if self.directory.exists():
                shutil.rmtree(self.directory)
            self.directory.mkdir(parents=True)

    async def seal(self, *, keep: int) -> Path:
        """Add state and manifest, sync, rename, and remove all but the newest `keep`, in a thread."""
        await asyncio.to_thread(_seal, self.directory, self._final, self._encoded_state, keep)
        return self._final

    def discard(self) -> None:
        """Give back the disk space of a checkpoint that could not be written."""
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def _disk_errors(final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{final}: the checkpoint could not be written ({error}); free disk space, then resume the run; "
            "the checkpoints before it are untouched"
        ) from error


def _seal(temporary: Path, final: Path, encoded_state: bytes, keep: int) -> None:
    with _disk_errors(final):
        (temporary / STATE_FILE).write_bytes(encoded_state)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        for path in files:
            sync(path)
        write_manifest(temporary, describe_files(files, temporary))
        for path in (temporary / MODEL_DIRECTORY, temporary):
            sync(path)
        _replace(final, temporary)
    for _, old in _by_version(final.parent)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)  # what cannot be removed now is tried again at the next checkpoint


def _replace(final: Path, temporary: Path) -> None:
    """Give the checkpoint its name; one of the same version, from before a rewind, goes only when it is there."""
    replaced = _replaced(final)
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)
    temporary.rename(final)
    sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _replaced(final: Path) -> Path:
    return final.with_name(f".{final.name}.replaced")


def restore_replaced(directory: Path) -> None:
    """Undo a replacement that was cut off between its two renames; only the run's one writer may call this."""
    for replaced in directory.glob(".step-*.replaced"):
        final = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))
        if not final.exists():
            replaced.rename(final)


def tidy_for_resume(directory: Path, chosen: Checkpoint | None) -> list[Path]:
    """Set aside what is newer than the chosen checkpoint, which must neither be kept nor found in its place.

    Returns the damaged directories under their new names; half-written ones are removed.
    """
    for leftover in [*directory.glob(".step-*.writing"), *directory.glob(".step-*.replaced")]:
        shutil.rmtree(leftover, ignore_errors=True)
    version = chosen.state.version if chosen else -1
    set_aside = []
    for newer, path in _by_version(directory):
        if newer > version:
            damaged = path.with_name(f"{path.name}.damaged")
            shutil.rmtree(damaged, ignore_errors=True)
            set_aside.append(path.rename(damaged))
    return set_aside


def find_checkpoint(directory: Path) -> Found:
    """The newest checkpoint below `directory` that is whole; an error if there are some and none is."""
    damage: list[CheckpointError] = []
    for _, path in reversed(_by_version(directory)):
        try:
            return Found(read_checkpoint(path), tuple(damage))
        except CheckpointError as error:
            damage.append(error)
    if damage:
        reasons = "; ".join(map(str, damage))
        raise CheckpointError(f"no checkpoint below {directory} is whole: {reasons}")
    return Found(None)


def read_checkpoint(directory: Path) -> Checkpoint:
    """Verify every file against the manifest, then read the controller's state."""
    manifest = verify(directory)
    _require_needed(directory, manifest)
    try:
        state: ControllerState = decoder_for(ControllerState).decode((directory / STATE_FILE).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{directory / STATE_FILE}: cannot be read ({error.strerror})") from None
    except msgspec.MsgspecError as error:
        raise CheckpointError(
            f"{directory / STATE_FILE}: written by another version of freerun ({error})"
        ) from None
    if directory.name != f"step-{state.version}":
        raise CheckpointError(f"{directory}: holds version {state.version}, so it was renamed or copied")
    return Checkpoint(directory, state, has_optimizer=manifest[OPTIMIZER_FILE] is not None)


def _require_needed(directory: Path, manifest: Manifest) -> None:
    """Refuse a manifest that vouches for less than a whole checkpoint."""
    listed = {name for name, entry in manifest.items() if entry is not None or name == OPTIMIZER_FILE}
    in_model = {name.removeprefix(f"{MODEL_DIRECTORY}/") for name in listed if name.startswith(MODEL_DIRECTORY)}
    needed = {
        STATE_FILE: STATE_FILE in listed,
        OPTIMIZER_FILE: OPTIMIZER_FILE in listed,
        f"{MODEL_DIRECTORY}/config.json": bool(in_model & {"config.json", "adapter_config.json"}),
        f"{MODEL_DIRECTORY}/*.safetensors": any(name.endswith(".safetensors") for name in in_model),
    }
    for name, is_listed in needed.items():
        if not is_listed:
            raise CheckpointError(f"{directory / MANIFEST_FILE}: does not list {name}")


def drop_optimizers(directory: Path) -> None:
    """Remove the optimizer's state from every checkpoint: two thirds of the disk that a run takes.

    The manifest goes first, so a crash in between leaves a whole checkpoint and a file that nothing refers to. One
    whose manifest is damaged is left alone: the run has finished and does not need it.
    """
    for _, path in _by_version(directory):
        try:
            manifest = read_manifest(path)
        except CheckpointError:
            continue
        with _disk_errors(path):
            write_manifest(path, manifest | {OPTIMIZER_FILE: None})
            sync(path)
            (path / OPTIMIZER_FILE).unlink(missing_ok=True)


def _by_version(directory: Path) -> list[tuple[int, Path]]:
    names = [path for path in directory.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted((int(path.name.removeprefix("step-")), path) for path in names)
