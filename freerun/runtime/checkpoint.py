"""Checkpoints of a whole run: model, optimizer and the controller's state of one version, or nothing.

    runs/<name>/checkpoints/step-20/
        model/                   Hugging Face directory, loads in `transformers`
        optimizer.safetensors    AdamW's moments
        state.msgpack            version, data cursor, buffered groups, prompts in flight
        manifest.json            sha256 and size of every file above

Written under a temporary name, synced, hashed, then renamed: a directory that is there is whole, and the
manifest tells if it was damaged later (safetensors itself accepts a flipped bit). The newest `keep` stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from freerun.buffer.groups import BufferState
from freerun.errors import CheckpointError
from freerun.types import decoder_for, encode

MODEL_DIRECTORY = "model"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.msgpack"
MANIFEST_FILE = "manifest.json"


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

    @property
    def model_directory(self) -> Path:
        return self.directory / MODEL_DIRECTORY

    @property
    def optimizer_file(self) -> Path:
        return self.directory / OPTIMIZER_FILE


class CheckpointWriter:
    """One checkpoint being written: opened when the state is captured, sealed when all files are there."""

    def __init__(self, directory: Path, state: ControllerState) -> None:
        self.directory = directory / f".step-{state.version}.writing"
        self._final = directory / f"step-{state.version}"
        self._encoded_state = encode(state)
        if self.directory.exists():
            shutil.rmtree(self.directory)
        self.directory.mkdir(parents=True)

    async def seal(self, *, keep: int) -> Path:
        """Add state and manifest, sync, rename, and remove all but the newest `keep`, in a thread."""
        await asyncio.to_thread(_seal, self.directory, self._final, self._encoded_state, keep)
        return self._final


def _seal(temporary: Path, final: Path, encoded_state: bytes, keep: int) -> None:
    (temporary / STATE_FILE).write_bytes(encoded_state)
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    manifest = {
        str(path.relative_to(temporary)): {"sha256": _hash(path), "bytes": path.stat().st_size} for path in files
    }
    (temporary / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2))
    for path in (*files, temporary / MANIFEST_FILE, temporary / MODEL_DIRECTORY, temporary):
        _sync(path)
    replaced = final.with_name(f".{final.name}.replaced")
    if final.exists():  # of a session that was rewound; it goes only when the new one is there
        final.rename(replaced)
    temporary.rename(final)
    _sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    for _, old in _by_version(final.parent)[:-keep]:
        shutil.rmtree(old)


def tidy_for_resume(directory: Path, chosen: Checkpoint | None) -> list[Path]:
    """Set aside what is newer than the chosen checkpoint, so that it is neither kept nor found in its place.

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


def find_checkpoint(directory: Path) -> Checkpoint | None:
    """The newest checkpoint below `directory` that is whole; None if there is none at all."""
    candidates = _by_version(directory)
    problems = []
    for _, path in reversed(candidates):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"no checkpoint below {directory} is whole: " + "; ".join(problems))
    return None


def read_checkpoint(directory: Path) -> Checkpoint:
    """Verify every file against the manifest, then read the controller's state."""
    try:
        manifest = json.loads((directory / MANIFEST_FILE).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory}: its manifest cannot be read ({error})") from None
    for name, expected in manifest.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != expected["bytes"] or _hash(path) != expected["sha256"]:
            raise CheckpointError(f"{path}: missing, or not the file that was saved (sha256 differs)")
    try:
        state: ControllerState = decoder_for(ControllerState).decode((directory / STATE_FILE).read_bytes())
    except msgspec.MsgspecError as error:
        raise CheckpointError(
            f"{directory / STATE_FILE}: written by another version of freerun ({error})"
        ) from None
    return Checkpoint(directory, state)


def _by_version(directory: Path) -> list[tuple[int, Path]]:
    names = [path for path in directory.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted((int(path.name.removeprefix("step-")), path) for path in names)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
