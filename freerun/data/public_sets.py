"""The public data sets that recipes use: source, licence and checksum of each, and the download.

    freerun data get openai/gsm8k   ──►   data/gsm8k/train.jsonl, data/gsm8k/test.jsonl

A file is kept only if its sha256 matches the recorded one, with which the recipes were tested. Addresses name a
commit where possible, so their contents do not change.
"""

import gzip
import hashlib
import http.client
import os
import urllib.request
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from freerun.errors import DataError

DIRECTORY = Path("data")
"""Where recipes expect them, relative to the directory in which freerun runs."""
TIMEOUT_SECONDS = 60
MAX_DOWNLOAD_BYTES = 64 << 20
"""Limit for a file, compressed or not; the largest has 4.2 MB, so a longer response is not the file."""
_GITHUB = "https://raw.githubusercontent.com"
_HUB = "https://huggingface.co/datasets"


@dataclass(frozen=True)
class PublicFile:
    url: str
    """Address; a .gz file is unpacked."""
    sha256: str
    """Checksum of the unpacked file."""
    split: str
    """"all" if it contains the rows of every split on the hub."""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2].removesuffix(".gz")


@dataclass(frozen=True)
class PublicSet:
    hub_name: str
    """Name on the hub, used in recipes; the rows are those of the hub, the file comes from `source`."""
    content: str
    source: str
    licence: str
    files: tuple[PublicFile, ...]
    """The first one is for training."""

    def file_of(self, split: str) -> PublicFile:
        """The file of a split; without one, the first."""
        found = [file for file in self.files if split in ("", file.split)]
        if not found:
            there = ", ".join(f'"{file.split}"' for file in self.files)
            raise DataError(f'{self.hub_name} has no split "{split}"; it has {there}')
        return found[0]


def _below(url: str, files: dict[str, tuple[str, str]]) -> tuple[PublicFile, ...]:
    return tuple(PublicFile(f"{url}/{name}", sha256, split) for name, (split, sha256) in files.items())


PUBLIC_SETS = {
    "gsm8k": PublicSet(
        "openai/gsm8k",
        "grade-school maths word problems, 7,473 to train on and 1,319 to test",
        "openai/grade-school-math on GitHub",
        "MIT",
        _below(
            f"{_GITHUB}/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data",
            {
                "train.jsonl": ("train", "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465"),
                "test.jsonl": ("test", "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14"),
            },
        ),
    ),
    "svamp": PublicSet(
        "ChilleD/SVAMP",
        "1,000 one-step maths word problems",
        "arkilpatel/SVAMP, as kept in hkust-nlp/simpleRL-reason on GitHub",
        "MIT",
        _below(
            f"{_GITHUB}/hkust-nlp/simpleRL-reason/cf1c7858bfc145a27aa733e75d930d34f0d318a6"
            "/examples/simplelr_math_eval/data/svamp",
            {"test.jsonl": ("all", "d0826ff1264f3860e46fc4e71db9e31d2d188960db87090e22677f9493e67a0d")},
        ),
    ),
    "math500": PublicSet(
        "HuggingFaceH4/MATH-500",
        "500 competition prompts, a test split of MATH (hendrycks/math)",
        "HuggingFaceH4/MATH-500 on the Hugging Face hub",
        "MIT",
        _below(
            f"{_HUB}/HuggingFaceH4/MATH-500/resolve/6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
            {"test.jsonl": ("test", "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132")},
        ),
    ),
    "humaneval": PublicSet(
        "openai/openai_humaneval",
        "164 Python functions to complete, with unit tests",
        "openai/human-eval on GitHub",
        "MIT",
        _below(
            f"{_GITHUB}/openai/human-eval/6d43fb980f9fee3c892a914eda09951f772ad10d/data",
            {"HumanEval.jsonl.gz": ("test", "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2")},
        ),
    ),
    "mbpp": PublicSet(
        "google-research-datasets/mbpp",
        "427 short Python tasks with unit tests, the sanitized part of MBPP",
        "google-research/google-research on GitHub, mbpp",
        "CC BY 4.0",
        _below(
            f"{_GITHUB}/google-research/google-research/e20eb00d074cdb569ee27318f112ea1e85bbb98f/mbpp",
            {"sanitized-mbpp.json": ("all", "ca95deaa9a01ef0a6f439f88bcf0dd3db3563d22f22aad6cae04ebb9a8d8c8e9")},
        ),
    ),
}


def set_of(path: Path) -> str:
    """The public set that a path such as data/gsm8k/train.jsonl belongs to, or an empty string."""
    name = path.parent.name
    is_known = name in PUBLIC_SETS and any(file.name == path.name for file in PUBLIC_SETS[name].files)
    return name if is_known else ""


def has_file(file: PublicFile, directory: Path) -> bool:
    """Whether the directory has the file; raises if a different file has its name."""
    path = directory / file.name
    if not path.is_file():
        return False
    try:
        with path.open("rb") as content:
            is_published = hashlib.file_digest(content, "sha256").hexdigest() == file.sha256
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); make it readable or move it away") from error
    if not is_published:
        raise DataError(f"{path} exists, but is not the published file; move it away to fetch that one")
    return True


def fetch(file: PublicFile, directory: Path) -> Path:
    """Download the file into the directory; it appears complete and verified, or not at all."""
    path = directory / file.name
    by_hand = (
        f"run this command where there is internet access and copy {path} here, or download it by other means, "
        "unpack it if it ends in .gz, and put it there"
    )
    try:
        content = _download(file.url)
    except (OSError, EOFError, ValueError, zlib.error, http.client.HTTPException) as error:
        raise DataError(f"{file.url} cannot be fetched ({error}); {by_hand}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise DataError(
            f"{file.url} is not the published file (sha256 {digest}, expected {file.sha256}) and is not "
            f"kept; {by_hand}"
        )
    write_whole(path, [content])
    return path


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file that appears complete, or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("xb") as file:  # never follow a link of that name
                file.writelines(parts)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written ({error}); run freerun where there is room to write it"
        ) from error


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
        packed = gzip.GzipFile(fileobj=response) if url.endswith(".gz") else response
        content: bytes = packed.read(MAX_DOWNLOAD_BYTES + 1)
    if len(content) > MAX_DOWNLOAD_BYTES:
        raise ValueError(f"more than {MAX_DOWNLOAD_BYTES >> 20} MiB")
    return content
