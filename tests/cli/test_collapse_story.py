"""The story of docs/replay.md, command by command: a run that collapses, its alarm, its cause and its cure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented_commands import ROOT, Command, commands_of

PAGE = ROOT / "docs" / "replay.md"
BEGIN = ("freerun", "model", "tiny", "models/small")


def story() -> list[Command]:
    commands = commands_of(PAGE)
    begin = next(i for i, command in enumerate(commands) if command.words[:4] == BEGIN)
    return [c for c in commands[begin:] if c.program == "freerun" and not c.is_inline]


def output_of(directory: Path, *words: str) -> str:
    command = [sys.executable, "-m", "freerun.cli.main", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "400"}
    done = subprocess.run(command, cwd=directory, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_a_collapse_is_told_found_tried_without_its_cause_and_cured(tmp_path: Path) -> None:
    make, train, resume, bisect, what_if, fork = story()
    for command in (make, train, resume):
        output_of(tmp_path, *command.words[1:])
    assert "held-out accuracy ended below where it began" in output_of(tmp_path, "show", "runs/steep")
    found = output_of(tmp_path, *bisect.words[1:])
    assert "held-out fell from" in found
    assert "lr 0.0002 → 0.003" in found
    tried = output_of(tmp_path, *what_if.words[1:])
    assert "from step 21 on: train.lr = 0.0002 (was 0.003)" in tried
    assert "step 23: effective sample size" in tried
    assert "forked from runs/steep at version 20" in output_of(tmp_path, *fork.words[1:])
    assert "no collapse of held-out" in output_of(tmp_path, "bisect", "runs/cured")
