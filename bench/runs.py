"""Runs of freerun as a user starts them, and their results from the store."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.harness import ROOT
from bench.models import tiny
from freerun.events.reader import RunReader

EUCLID = ROOT / "bench/recipes/euclid-199.toml"


def train_command(recipe: Path, runs: Path, name: str, *overrides: str) -> list[str]:
    """The command that trains by the recipe into `runs/name`."""
    command = [sys.executable, "-m", "freerun.cli.main", "train", str(recipe)]
    return [*command, "--run.directory", str(runs), "--run.name", name, *overrides]


def train(recipe: Path, runs: Path, name: str, *overrides: str) -> RunReader:
    """Train by the recipe in a separate process; returns when the run has succeeded."""
    command = train_command(recipe, runs, name, *overrides)
    print("$ freerun " + " ".join(command[3:]), flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return RunReader(runs / name)


def euclid_start() -> list[str]:
    """Overrides of `EUCLID` that begin with its warm-started model: made once, in about ten minutes."""
    directory = ROOT / "models/euclid-199-warm"
    if not directory.exists():
        with tempfile.TemporaryDirectory(prefix="freerun-warm-start-") as scratch:
            quiet = ("--train.num_steps", "0", "--eval.num_prompts", "1")
            train(EUCLID, Path(scratch), "warm", "--model.path", str(tiny()), *quiet).close()
            shutil.copytree(Path(scratch, "warm/checkpoints/step-0/model"), directory)
    return ["--model.path", str(directory), "--sft.num_steps", "0"]
