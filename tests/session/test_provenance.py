"""What a session says that it was made with."""

import os
from pathlib import Path

import pytest

from freerun.session.process_watch import measure
from freerun.session.provenance import file_of, hash_of_files


def test_the_hash_changes_with_the_text_of_a_file_and_nothing_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grader = tmp_path / "my_grader.py"
    grader.write_text("raise SystemExit('imported')")
    assert file_of("my_grader:score") == grader
    first = hash_of_files([grader])
    grader.write_text("raise SystemExit('imported again')")
    assert len(first) == 64
    assert hash_of_files([grader]) != first


def test_what_cannot_be_found_or_read_has_no_hash(tmp_path: Path) -> None:
    assert file_of("no_such_module_anywhere:score") is None
    assert hash_of_files([tmp_path / "nothing"]) == hash_of_files([]) == ""


def test_a_process_that_has_ended_is_left_out() -> None:
    [own] = measure({"controller": os.getpid(), "grader-0": 2**22 + 1})
    assert own.worker == "controller"
    assert own.cpu_seconds > 0
    assert own.memory_bytes > 1_000_000
