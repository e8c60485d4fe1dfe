"""Checkpoints of a whole run: model, optimizer and the controller's state of one version, or nothing.

    runs/<name>/checkpoints/step-20/
        model/                   Hugging Face directory, loads in `transformers`
        optimizer.safetensors    AdamW's moments
        state.msgpack            version, data cursor, buffered groups, prompts in flight
        manifest.json            sha256 and size of every file above (`manifest.py`)

Written under a temporary name, synced, hashed, then renamed: an existing directory is complete, and the manifest
reveals later damage. The newest `keep` checkpoints and those protected by the caller are kept.
"""

import asyncio
import shutil
from collections.abc import Collection, Iterator
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


class SftState(msgspec.Struct, frozen=True, kw_only=True):
    """How far SFT has come; during SFT the checkpoint's optimizer state is that of SFT."""

    step: int
    fingerprint: str
    """Fingerprint of the ordered demonstrations."""


class ControllerState(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the controller needs to continue as if uninterrupted."""

    version: int
    cursor: int
    """Ordinal of the first prompt that has not been started."""
    buffer: BufferState
    seconds: float
    """The run's clock."""
    data_fingerprint: str
    """Fingerprint of the ordered training prompts, which the ordinals refer to."""
    resting: dict[str, int] = {}
    """For each prompt that the curriculum rests, by key: how many more visits it is skipped."""
    ahead: int | None = None
    """Samples that may start ahead of the version; None without freshness control (`freshness.py`)."""
    sft: SftState | None = None
    """None without SFT or after it; no prompt is drawn before SFT ends."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files match its manifest."""

    directory: Path
    state: ControllerState
    has_optimizer: bool
    """False if it was dropped at the end of a finished run: the model is usable, the run cannot continue."""

    @property
    def model_directory(self) -> Path:
        return self.directory / MODEL_DIRECTORY

    @property
    def optimizer_file(self) -> Path:
        return self.directory / OPTIMIZER_FILE


@dataclass(frozen=True)
class FoundCheckpoint:
    """The newest valid checkpoint, and why each newer one was skipped, newest first."""

    checkpoint: Checkpoint | None
    damage: tuple[CheckpointError, ...] = ()


class CheckpointWriter:
    """A checkpoint being written: opened when the state is captured, sealed when all files exist."""

    def __init__(self, directory: Path, state: ControllerState) -> None:
        self.directory = directory / f".step-{state.version}.writing"
        self._final = directory / f"step-{state.version}"
        self._encoded_state = encode(state)
        with _disk_errors(self._final):
            if self.directory.exists():
                shutil.rmtree(self.directory)
            self.directory.mkdir(parents=True)

    async def seal(self, *, keep: int, protected: Collection[int] = ()) -> Path:
        """Add state and manifest, sync, rename, and remove old checkpoints, in a thread.

        Keeps the newest `keep` checkpoints and those of the versions in `protected`.
        """
        await asyncio.to_thread(_seal, self.directory, self._final, self._encoded_state)
        await asyncio.to_thread(remove_old, self._final.parent, keep=keep, protected=protected)
        return self._final

    def discard(self) -> None:
        """Free the disk space of a checkpoint that could not be written."""
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


def _seal(temporary: Path, final: Path, encoded_state: bytes) -> None:
    with _disk_errors(final):
        (temporary / STATE_FILE).write_bytes(encoded_state)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        for path in files:
            sync(path)
        write_manifest(temporary, describe_files(files, temporary))
        for path in (temporary / MODEL_DIRECTORY, temporary):
            sync(path)
        _replace(final, temporary)


def remove_old(checkpoints: Path, *, keep: int, protected: Collection[int]) -> None:
    """Remove all checkpoints but the newest `keep` and those of protected versions."""
    for version, old in _by_version(checkpoints)[:-keep]:
        if version not in protected:
            shutil.rmtree(old, ignore_errors=True)  # retried at the next checkpoint


def _replace(final: Path, temporary: Path) -> None:
    """Rename the checkpoint; an old one of the same version, left from before a rewind, is removed afterwards."""
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
    """Undo a replacement that was interrupted between its two renames; only the run's writer may call it."""
    for replaced in directory.glob(".step-*.replaced"):
        final = replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))
        if not final.exists():
            replaced.rename(final)


def tidy_for_resume(directory: Path, chosen: Checkpoint | None) -> list[Path]:
    """Set aside everything newer than the chosen checkpoint: no later search may find it.

    Returns the new names of damaged directories; half-written directories are removed.
    """
    for leftover in [*directory.glob(".step-*.writing"), *directory.glob(".step-*.replaced")]:
        shutil.rmtree(leftover, ignore_errors=True)
    set_aside = []
    for version, path in _by_version(directory):
        if chosen is None or version > chosen.state.version:
            damaged = path.with_name(f"{path.name}.damaged")
            shutil.rmtree(damaged, ignore_errors=True)
            set_aside.append(path.rename(damaged))
    return set_aside


def find_checkpoint(directory: Path) -> FoundCheckpoint:
    """The newest valid checkpoint below `directory`; raises if there are checkpoints but none is valid."""
    damage: list[CheckpointError] = []
    for _, path in reversed(_by_version(directory)):
        try:
            return FoundCheckpoint(read_checkpoint(path), tuple(damage))
        except CheckpointError as error:
            damage.append(error)
    if damage:
        reasons = "; ".join(map(str, damage))
        raise CheckpointError(f"no checkpoint below {directory} is whole: {reasons}")
    return FoundCheckpoint(None)


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
    """Refuse a manifest that does not list a whole checkpoint."""
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
    """Remove the optimizer state, two thirds of a run's disk usage, from every checkpoint.

    The manifest changes first: a crash in between leaves a valid checkpoint and an unreferenced file. A checkpoint
    with a damaged manifest is left alone: the run has finished and does not need it.
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
