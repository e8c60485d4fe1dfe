"""Every command of README.md and docs/ is run as it is written, or there is a reason why not.

Each page is followed from its first command to its last, by a shell, in a directory with what the page presumes.
"""

import os
import re
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from documented_commands import ROOT, Command
from documented_pages import (
    EXECUTED,
    EXEMPT,
    address_pattern,
    all_commands,
    as_run,
    commands_to_run,
    is_accounted_for,
    is_asked_at_a_terminal,
    is_planned,
    prepare,
    said_to,
    unused_entries,
)

from freerun.cli.main import main

DEADLINE_SECONDS = 240
PAGES_WITH_COMMANDS = [page for page in EXECUTED if commands_to_run(page)]


def test_every_command_is_run_or_exempt() -> None:
    assert [str(command) for command in all_commands() if not is_accounted_for(command)] == []


def test_every_exemption_and_substitute_occurs_and_every_test_that_is_named_exists() -> None:
    assert unused_entries() == []
    named = [path for each in EXEMPT for path in re.findall(r"tests/\S+\.py", each.reason)]
    assert [path for path in named if not (ROOT / path).is_file()] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS)
def test_a_page_can_be_followed_from_its_first_command_to_its_last(
    tmp_path: Path, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    for command in commands_to_run(page):
        if is_planned(command):
            plan(command)
        elif pattern := address_pattern(command):
            ask(command, tmp_path, pattern)
        else:
            run(command, tmp_path)


def plan(command: Command) -> None:
    """In this process, which has imported already what a plan needs."""
    words = shlex.split(as_run(command), comments=True)[1:]
    assert main(words) == 0, command


def run(command: Command, directory: Path) -> None:
    with typed(said_to(command), at_a_terminal=is_asked_at_a_terminal(command)) as keyboard:
        done = subprocess.run(
            ["bash", "-c", as_run(command)],
            cwd=directory,
            env=environment(directory),
            stdin=keyboard,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
    assert done.returncode == 0, f"{as_run(command)}\n{done.stdout}{done.stderr}"


@contextmanager
def typed(text: str, *, at_a_terminal: bool) -> Iterator[int]:
    """The end of a terminal, or of a pipe, from which the text can be read."""
    reading, writing = reversed(os.openpty()) if at_a_terminal else os.pipe()
    os.write(writing, text.encode())
    if not at_a_terminal:
        os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)
        if at_a_terminal:
            os.close(writing)


def ask(command: Command, directory: Path, pattern: str) -> None:
    """Wait for the address, get an answer from it, press Ctrl-C."""
    output = directory / "serving.txt"
    with started(command, directory, output) as process:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (address := re.search(pattern, output.read_text())):
            assert process.poll() is None, f"{command} ended:\n{output.read_text()}"
            assert time.monotonic() < deadline, f"{command} says no address:\n{output.read_text()}"
            time.sleep(0.05)
        assert status_of(address[1]) in {200, 401, 404}, command
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, output.read_text()


@contextmanager
def started(command: Command, directory: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-c", as_run(command)],
            cwd=directory,
            env=environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def status_of(address: str) -> int:
    """Of a GET; one without its key is an answer too."""
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def environment(directory: Path) -> dict[str, str]:
    """`freerun` is this checkout's; a browser is one that shows nothing."""
    path = f"{directory / '.venv' / 'bin'}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "BROWSER": "true", "COLUMNS": "200"}
