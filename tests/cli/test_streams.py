"""Output that nobody reads: a run continues without it, other commands end quietly or with an error."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import ROOT, make_run

from freerun.cli.streams import OutputStream
from freerun.events.reader import RunReader

CLOSE_STDOUT = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


def freerun(*arguments: str, stdout: int, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "freerun.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=stderr, text=True, check=False, timeout=240)


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """The write end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full_device() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_trains_to_its_end(
    tmp_path: Path, closed_pipe: int, full_device: int
) -> None:
    recipe = make_run(tmp_path)
    done = freerun("train", str(recipe), "--train.num_steps", "2", stdout=closed_pipe, stderr=full_device)
    assert done.returncode == 0
    with RunReader(tmp_path / "runs" / "tiny") as reader:
        assert (reader.status().state, reader.status().version) == ("finished", 2)


def test_a_stream_that_is_not_needed_is_silent_after_its_first_failure(full_device: int) -> None:
    with open(full_device, "w", closefd=False) as file:
        stream = OutputStream(file, is_needed=False)
        for _ in range(2):
            assert stream.write("a line\n") == 7
            stream.flush()


@pytest.mark.slow
def test_a_run_without_stdout_trains_to_its_end(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    command = [sys.executable, "-c", CLOSE_STDOUT, "-m", "freerun.cli.main", "train", str(recipe)]
    done = subprocess.run([*command, "--train.num_steps", "2"], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "verb", [["--help"], ["train", "--help"], ["runs", "."], ["runs", ".", "--json"]], ids=" ".join
)
def test_other_commands_end_quietly_when_their_reader_has_seen_enough(verb: list[str], closed_pipe: int) -> None:
    done = freerun(*verb, stdout=closed_pipe)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", [["--version"], ["runs", "."]], ids=" ".join)
def test_output_that_cannot_be_written_is_an_error_in_one_line(verb: list[str], full_device: int) -> None:
    done = freerun(*verb, stdout=full_device)
    assert (done.returncode, done.stderr) == (2, "freerun: cannot write the output: No space left on device\n")
