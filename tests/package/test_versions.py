"""Versions: what the metadata allow, what the lock holds and what the Makefile pins agree."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import freerun

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IN_VENV = ("smollm2", "tasks", "plots", "agents", "dev")
"""The extras that the Makefile installs in .venv."""


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements-dev.lock").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def test_the_lock_holds_an_allowed_version_of_every_requirement() -> None:
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *(text for extra in IN_VENV for text in extras[extra])]
    versions = locked()
    for requirement in map(Requirement, needed):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in requirements-dev.lock; run make lock"
        assert version in requirement.specifier, f"{requirement}, locked at {version}"


def test_the_lock_holds_released_versions_and_no_place() -> None:
    """A local version, a path or an address would be one machine's own."""
    for name, version in locked().items():
        assert re.fullmatch(r"[0-9][0-9a-z.]*", version), f"{name}=={version}"
    assert "freerun" not in locked()


def test_the_makefile_pins_the_torch_of_the_lock_and_the_metadata_allow_no_newer_minor_release() -> None:
    pinned = re.search(r"^TORCH := torch==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] == locked()["torch"]
    [torch] = [Requirement(text) for text in PROJECT["dependencies"] if text.startswith("torch")]
    major, minor, *_ = map(int, pinned[1].split("."))
    assert pinned[1] in torch.specifier
    assert f"{major}.{minor + 1}.0" not in torch.specifier
    assert metadata.version("torch").split("+")[0] in torch.specifier


def test_the_version_is_the_same_in_code_and_metadata() -> None:
    assert PROJECT["version"] == freerun.__version__
