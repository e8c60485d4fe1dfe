"""Data sets named as on the Hugging Face hub, stored as files: `openai/gsm8k` is data/gsm8k/train.jsonl.

    freerun data get openai/gsm8k     ──►   data/gsm8k/train.jsonl, data/gsm8k/test.jsonl   (public_sets.py)
    freerun data get someone/numbers  ──►   data/someone/numbers/SPLIT.jsonl                (written here)
    data.path = "openai/gsm8k"        ──►   the split to train on; "openai/gsm8k:test" names another split

A run only looks for these files: a start must not wait for a download. `hub.py` reads data sets without files.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from freerun.config.load import DATA_SUFFIXES
from freerun.data.hub import DEFAULT_SPLIT, numbered
from freerun.data.public_sets import DIRECTORY, PUBLIC_SETS, set_of, write_whole
from freerun.data.settings import require_extra
from freerun.errors import DataError

_NAME = re.compile(r"(?P<set>[a-z0-9][\w.-]*/[a-z0-9][\w.-]*)(?::(?P<split>\w[\w.-]*))?", re.ASCII | re.IGNORECASE)
_SPLIT = re.compile(r"\w[\w.-]*", re.ASCII)


def is_hub_name(name: str) -> bool:
    """Whether a path that is not a file can only be a data set on the hub, with or without a split."""
    found, folder = _NAME.fullmatch(name), name.partition("/")[0]
    is_path = Path(name).suffix in DATA_SUFFIXES or folder == DIRECTORY.name or Path(folder).exists()
    return found is not None and (bool(known_set(found["set"])) or not is_path)


def known_set(name: str) -> str:
    """Our short name of a public set, given that name or its name on the hub; empty for other sets."""
    names = (short for short, public in PUBLIC_SETS.items() if name in (short, public.hub_name))
    return next(names, "")


def file_of(path: str) -> Path:
    """The file that `data.path` or `data.held_out_path` refers to, whether it exists or not."""
    if Path(path).is_file() or not is_hub_name(path):
        return Path(path)
    name, _, split = path.partition(":")
    if short := known_set(name):
        return DIRECTORY / short / PUBLIC_SETS[short].file_of(split).name
    return DIRECTORY / name / f"{split or DEFAULT_SPLIT}.jsonl"


def what_is_missing(path: str) -> str:
    """The end of an error about a missing file: how to get it, with and without internet access."""
    file, (name, _, split) = file_of(path), path.partition(":")
    if short := set_of(file):
        public = PUBLIC_SETS[short]
        command, origin = public.hub_name, f"{public.source}, {public.licence}"
    elif is_hub_name(path):
        command, origin = f"{name} --split {split}" if split else name, "the Hugging Face hub"
    else:
        return "is not a file; name another"
    missing = "is not a file" if file == Path(path) else f"is not here: {file} is missing"
    return (
        f'{missing}; "freerun data get {command}" fetches it from {origin}; without internet access, put the file '
        "there by hand, or name another"
    )


def fetch_rows(name: str, *, split: str = "", configuration: str = "") -> list[Path]:
    """Write a data set of the hub to files, one per split; existing files are kept."""
    directory = DIRECTORY / name / configuration
    for option, text in (("--split", split), ("--configuration", configuration)):
        if text and not _SPLIT.fullmatch(text):
            raise DataError(f'{option} {text}: not a name; write letters, digits and any of "._-"')
    if split and (directory / f"{split}.jsonl").is_file():
        return [directory / f"{split}.jsonl"]
    loaded = _load(name, split, configuration, directory)
    return [_write_rows(directory / f"{one}.jsonl", rows) for one, rows in loaded.items()]


def _load(name: str, split: str, configuration: str, directory: Path) -> dict[str, Any]:
    datasets = require_extra("datasets", needed_for=f"fetching {name}")
    try:
        loaded = datasets.load_dataset(name, configuration or None, split=split or None)
    # The library, the hub's client and the file readers raise errors without a common base.
    except Exception as error:
        raise DataError(
            f"{name} cannot be fetched ({type(error).__name__}: {error}); run this command where the hub can be "
            f"reached and copy {directory} here, or put a file of its rows at "
            f"{directory / (split or DEFAULT_SPLIT)}.jsonl by hand: one JSON object a line"
        ) from error
    return {split: loaded} if split else dict(loaded)


def _write_rows(path: Path, rows: Iterable[Any]) -> Path:
    if not path.is_file():
        write_whole(path, (_json_line(key, row) for key, row in numbered(path.name, rows)))
    return path


def _json_line(key: str, row: Any) -> bytes:
    try:
        return msgspec.json.encode(row) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # for example an image
        raise DataError(
            f'{key}: cannot be written as JSON ({error}); read it with data.task = "datasets"'
        ) from error
