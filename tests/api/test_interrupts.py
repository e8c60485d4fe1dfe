"""Ctrl-C while the library runs in a running event loop, as in a notebook."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tiny_runs import ROOT, make_run

import freerun
from freerun.api.anywhere import run_anywhere
from freerun.session.attachments import StopSwitch

CELL = """
import asyncio, signal, sys
import freerun
from freerun.events.events import StepFinished


def listen(event):
    if isinstance(event, StepFinished):
        print("a step", flush=True)


async def cell():
    recipe = freerun.load_recipe(sys.argv[1], {"train.num_steps": 100_000, "checkpoint.every_steps": 100_000})
    handler = signal.getsignal(signal.SIGINT)
    result = freerun.train(recipe, listeners=[listen])
    assert signal.getsignal(signal.SIGINT) is handler
    return result


loop = asyncio.new_event_loop()
result = RUN
print(result.outcome, result.reason, result.version, result.model_directory, sep="|")
"""
LOOPS = {"of a notebook": "loop.run_until_complete(cell())", "of asyncio.run": "asyncio.run(cell())"}


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_one_interrupt_saves_and_returns_the_result(tmp_path: Path, loop: str) -> None:
    script = tmp_path / "cell.py"
    script.write_text(CELL.replace("RUN", LOOPS[loop]))
    process = subprocess.Popen(
        [sys.executable, str(script), str(make_run(tmp_path))],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has made them ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    while "a step" not in (line := process.stdout.readline()):
        assert line, process.communicate()[1]
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    outcome, reason, version, model = output.splitlines()[-1].split("|")
    assert (outcome, reason) == ("interrupted", "")
    assert Path(model) == tmp_path / f"runs/tiny/checkpoints/step-{version}/model"
    assert Path(model).is_dir()
    resumed = freerun.load_recipe(tmp_path / "runs/tiny/config.toml", {"train.num_steps": int(version) + 1})
    assert freerun.train(resumed, resume=True).outcome == "finished"


def test_signals_press_the_switch_of_the_session_and_are_the_callers_again_afterwards() -> None:
    stop, presses = StopSwitch(), threading.Semaphore(0)

    def work() -> str:
        stop.connect(presses.release)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            assert presses.acquire(timeout=60)
        return "stopped twice"

    async def cell() -> str:
        return run_anywhere(work, stop)

    seen = list[int]()
    mine = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert asyncio.run(cell()) == "stopped twice"
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, mine)
        signal.signal(signal.SIGINT, interrupted)
