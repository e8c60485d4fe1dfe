"""The files that make up the page: those beside this module in `static`, and no others."""

from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).with_name("static")
SCRIPT_TYPE = "text/javascript; charset=utf-8"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": SCRIPT_TYPE,
    ".svg": "image/svg+xml",
    ".json": "application/json",
}


@dataclass(frozen=True)
class PageFile:
    path: Path
    content_type: str


def static_files(directory: Path = STATIC) -> dict[str, PageFile]:
    """The files by their names below `directory`: requests are compared with them, never made into paths."""
    found = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        path.relative_to(directory).as_posix(): PageFile(
            path, _TYPES.get(path.suffix, "text/plain; charset=utf-8")
        )
        for path in found
    }
