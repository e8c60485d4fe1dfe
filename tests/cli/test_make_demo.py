"""What `make demo` starts, at a terminal and elsewhere."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make_demo(bin_directory: Path, *, terminal: int | None) -> list[str]:
    """The arguments that `make demo` passes to freerun, with standard streams that are a terminal or are not."""
    told = bin_directory / "told"
    command = bin_directory / "freerun"
    command.write_text(f'#!/bin/sh\necho "$@" > {told}\n')
    command.chmod(0o755)
    stream = subprocess.DEVNULL if terminal is None else terminal
    ready = ("-o", ".venv/.installed", "-o", "models/smollm2/model.safetensors")
    subprocess.run(
        ["make", *ready, "demo", f"BIN={bin_directory}", "ARGS=--run.seed 1"],
        cwd=ROOT, stdin=stream, stdout=stream, check=True,
    )  # fmt: skip
    return told.read_text().split()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_demo_serves_its_page_at_the_end_only_at_a_terminal(tmp_path: Path, is_terminal: bool) -> None:
    ours, theirs = pty.openpty()
    try:
        arguments = make_demo(tmp_path, terminal=theirs if is_terminal else None)
    finally:
        os.close(ours)
        os.close(theirs)
    assert arguments[:2] == ["train", "recipes/times-tables.toml"]
    assert arguments[-2:] == ["--run.seed", "1"]
    assert ("--view" in arguments) == is_terminal
