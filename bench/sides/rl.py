"""A run of `freerun train`, as a user starts it: its throughput in the steady state, read from its store.

    rl.py RECIPE [OVERRIDE ...]

Each request is a separate run. The first steps are not measured: the engine starts with an empty buffer. After the
requested number of further steps the run is stopped while it still generates. Its last steps, with nothing left to
generate, are therefore not measured either.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from asked import answer
from memory import PeakMemory

from freerun.events.metrics import RunState
from freerun.events.reader import RunReader
from freerun.events.schema import StoreError

NUM_FILLING_STEPS = 2
"""64 slots are two batches of 32, which the engine finishes at nearly the same time."""
POLL_SECONDS = 0.5


def train(num_steps: int, seed: int = 0) -> dict[str, Any]:
    recipe, *overrides = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="freerun-rl-") as runs:
        command = [sys.executable, "-m", "freerun.cli.main", "train", recipe, *overrides]
        command += ["--run.directory", runs, "--run.name", "run", "--run.seed", str(seed)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        with PeakMemory(process.pid) as memory:
            _wait_for_version(Path(runs, "run"), NUM_FILLING_STEPS + num_steps, process)
        _stop(process)
        with RunReader(Path(runs, "run")) as reader:
            return {**_figures(reader, num_steps), "peak_bytes": memory.peak_bytes}


def _wait_for_version(run: Path, version: int, process: subprocess.Popen[bytes]) -> None:
    while _version(run) < version:
        if process.poll() is not None:
            raise SystemExit(f"freerun train ended with status {process.returncode} before step {version}")
        time.sleep(POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Immediately: the second signal keeps it from finishing its step and saving."""
    process.send_signal(signal.SIGINT)
    time.sleep(POLL_SECONDS)
    process.send_signal(signal.SIGINT)
    process.wait()


def _version(run: Path) -> int:
    try:
        with RunReader(run) as reader:
            step = reader.last_step()
    except StoreError:  # not made yet
        return 0
    return step.version if step else 0


def _figures(reader: RunReader, num_steps: int) -> dict[str, Any]:
    """Completion tokens trained on, and generated meanwhile, from the end of the filling steps on."""
    steps = reader.steps()[NUM_FILLING_STEPS - 1 : NUM_FILLING_STEPS + num_steps]
    begin, end = steps[0].seconds, steps[-1].seconds
    batches = [reader.trajectories(step.version) for step in steps[1:]]
    lengths = [len(trajectory.token_ids) for batch in batches for trajectory in batch]
    return {
        "tokens": sum(lengths),
        "seconds": end - begin,
        "lengths": lengths,
        "generated_tokens": _generated(reader, end) - _generated(reader, begin),
        "trainer_busy": sum(step.step_seconds for step in steps[1:]) / (end - begin),
    }


def _generated(reader: RunReader, seconds: float) -> float:
    """Tokens sampled until then."""
    state = RunState()
    for event in reader.events("engine_report"):
        if event.seconds <= seconds:
            state(event)
    return state.engine_total("num_tokens")


if __name__ == "__main__":
    answer(train)
