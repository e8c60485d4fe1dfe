"""The manifest of a checkpoint: size and sha256 of each file, by its path inside the directory.

    {"state.msgpack": {"sha256": "...", "bytes": 812}, ..., "optimizer.safetensors": null}

safetensors itself accepts a flipped bit, so every file is hashed. `null` marks a file that was dropped on request.
A malformed manifest, or one without a file that the checkpoint needs, is treated as damage.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from freerun.errors import CheckpointError

MANIFEST_FILE = "manifest.json"


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Expected size and hash of one file."""

    sha256: str
    bytes: int


Manifest = Mapping[str, FileEntry | None]
_decoder = msgspec.json.Decoder(dict[str, FileEntry | None])


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest into place."""
    content = msgspec.json.format(msgspec.json.encode(dict(manifest)), indent=2)
    replace_file(directory / MANIFEST_FILE, content)


def describe_files(files: Iterable[Path], directory: Path) -> dict[str, FileEntry | None]:
    """The manifest entries of files below `directory`, from their current contents."""
    return {
        path.relative_to(directory).as_posix(): FileEntry(sha256=_hash(path), bytes=path.stat().st_size)
        for path in files
    }


def verify(directory: Path) -> dict[str, FileEntry | None]:
    """Read the manifest and check every file against it; raises `CheckpointError`."""
    manifest = read_manifest(directory)
    for name, expected in manifest.items():
        if expected is None:
            continue
        path = directory / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(f'{directory / MANIFEST_FILE}: names "{name}", which is outside the checkpoint')
        try:
            is_same = path.stat().st_size == expected.bytes and _hash(path) == expected.sha256
        except (OSError, ValueError) as error:  # ValueError: a name with a null byte
            raise CheckpointError(f"{path}: cannot be read ({_reason(error)})") from None
        if not is_same:
            raise CheckpointError(f"{path}: not the file that was saved (size or sha256 differs)")
    return manifest


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably."""
    temporary = path.with_name(f".{path.name}.writing")
    temporary.unlink(missing_ok=True)  # a partial file, or a link that must not be followed
    with temporary.open("xb") as file:
        file.write(content)
    sync(temporary)
    temporary.rename(path)


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(directory: Path) -> dict[str, FileEntry | None]:
    """The manifest's entries, before any file is compared with them."""
    try:
        return _decoder.decode((directory / MANIFEST_FILE).read_bytes())
    # RecursionError: excessively nested brackets.
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{directory}: its manifest cannot be read ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
