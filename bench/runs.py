"""Runs of freerun as a user starts them, and what their stores say of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from freerun.events.reader import RunReader


def train(recipe: Path, runs: Path, name: str, *overrides: str) -> RunReader:
    """Train by the recipe in a process of its own; returns when the run has ended well."""
    command = [sys.executable, "-m", "freerun.cli.main", "train", str(recipe)]
    command += ["--run.directory", str(runs), "--run.name", name, *overrides]
    print("$ freerun " + " ".join(command[3:]), flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return RunReader(runs / name)


def warm_started(recipe: Path, runs: Path) -> Path:
    """The model that the recipe's warm start makes."""
    train(recipe, runs, "warm-start", "--train.num_steps", "1", "--eval.every_steps", "100000")
    return runs / "warm-start/checkpoints/step-1/model"


def make_tiny_model(directory: Path, *, task: str) -> None:
    """Half a million random parameters, with one key head for all query heads."""
    sizes = "--hidden-size 128 --num-layers 3 --num-heads 4 --num-kv-heads 1 --intermediate-size 384"
    command = [sys.executable, "-m", "freerun.cli.main", "model", "tiny", str(directory), "--task", task]
    subprocess.run([*command, *sizes.split()], check=True, stdout=subprocess.DEVNULL)
