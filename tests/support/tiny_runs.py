"""Real runs in miniature: the command line, real processes, a model of a few thousand parameters."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from process_table import children_running

from freerun.config.load import load_recipe
from freerun.config.recipe import Recipe
from freerun.controller.checkpoint import read_checkpoint
from freerun.data.tasks import alphabet_of
from freerun.events.reader import RunReader
from freerun.model.tiny import make_tiny

ROOT = Path(__file__).parents[2]
RECIPE = """
[run]
directory = "{directory}/runs"
name = "tiny"
seed = 3
[model]
path = "{directory}/model"
[data]
task = "euclid"
max_prompt_tokens = 16
[sampling]
group_size = 4
max_completion_tokens = 24
[engine]
num_slots = 16
cache_tokens = 640
[reward]
grader = "tests.support.lively_grader:score"
[objective]
advantage = "grpo"
[train]
num_steps = 8
prompts_per_step = 3
num_minibatches = 2
lr = 1e-2
[eval]
every_steps = 4
num_prompts = 4
num_samples = 2
[checkpoint]
every_steps = 3
"""


def make_run(directory: Path, **model_sizes: int) -> Path:
    """A tiny model and its recipe; returns the recipe's path."""
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 48}
    make_tiny(directory / "model", alphabet=alphabet_of("euclid"), seed=5, **(sizes | model_sizes))
    path = directory / "tiny.toml"
    path.write_text(RECIPE.format(directory=directory))
    return path


def recipe_of(path: Path, *overrides: str) -> Recipe:
    return load_recipe(path, list(overrides))


class Run:
    """`freerun train` as a user starts it; its output goes to a file."""

    def __init__(self, recipe: Path, *arguments: str) -> None:
        self.output_path = recipe.parent / f"output-{time.monotonic_ns()}.txt"
        self.reader_path = recipe.parent / "runs" / "tiny"
        with self.output_path.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "freerun.cli.main", "train", str(recipe), *arguments],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    @property
    def num_steps(self) -> int:
        """Steps in its output."""
        return max((int(step) for step in re.findall(r"step (\d+)/", self.output)), default=0)

    def wait(self, timeout_seconds: float = 240) -> int:
        return self.process.wait(timeout_seconds)

    def until(self, happened: Callable[[], bool], timeout_seconds: float = 240) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not happened():
            assert self.process.poll() is None or happened(), f"the run ended early:\n{self.output}"
            assert time.monotonic() < deadline, f"waited too long:\n{self.output}"
            time.sleep(0.05)

    def until_step(self, step: int) -> None:
        self.until(lambda: f"step {step}/" in self.output)

    def until_saved(self, version: int) -> None:
        """Wait for a checkpoint of this version or a later one: what falls due while one is written is late."""

        def is_saved() -> bool:
            return any(int(saved) >= version for saved in re.findall(r"checkpoint (\d+) saved", self.output))

        self.until(is_saved)

    def workers(self, module: str = "") -> list[psutil.Process]:
        """Living child processes, or those of one module."""
        try:
            return children_running(module, self.process.pid, recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def reader(self) -> RunReader:
        return RunReader(self.reader_path)


def are_gone(processes: list[psutil.Process], timeout_seconds: float = 60) -> bool:
    """Whether all of them end by themselves."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_seconds)
    return not alive


def assert_exactly_once(run: Run, *, num_steps: int, prompts_per_step: int = 3) -> None:
    """The ledger: every prompt ever taken was trained on once, or waits in the last checkpoint to be."""
    trained = run.reader().trained_ordinals()
    assert len(trained) == num_steps * prompts_per_step
    state = read_checkpoint(run.reader_path / "checkpoints" / f"step-{num_steps}").state
    waiting = [group.ordinal for group in state.buffer.ready] + list(state.buffer.to_restart)
    lost = state.buffer.totals.get("failed", 0) + state.buffer.totals.get("filtered", 0)
    assert lost == 0, "these runs lose nothing"
    assert sorted([*trained, *waiting]) == list(range(state.cursor))
