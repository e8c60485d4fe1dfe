"""Whole runs whose sessions need a server of their own, or a package that is not there."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_runs import ROOT, Run, make_run

from freerun.controller.checkpoint import read_checkpoint

ENVIRONMENT = ROOT / "tests" / "support" / "echo_environment.py"
SESSIONS = ("--rollout.max_session_tokens", "60", "--sampling.max_completion_tokens", "6")


@contextmanager
def environment(port: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, str(ENVIRONMENT), str(port)], cwd=ROOT) as server:
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.slow
def test_an_environment_server_that_is_killed_costs_only_the_groups_that_needed_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    playing = ("--rollout.episode", "tests.support.echo_environment:episode", "--rollout.settings", f"port={port}")
    patient = ("--reward.max_failures_in_row", "1000000", "--train.num_steps", "24", "--eval.num_prompts", "0")
    run = None
    try:
        with environment(port) as server:
            run = Run(make_run(tmp_path), *SESSIONS, *playing, *patient)
            run.until_step(3)
            server.kill()
            server.wait()
            run.until(lambda: "failed" in run.output)
        with environment(port):
            assert run.wait() == 0, run.output
    finally:
        if run is not None:
            run.process.kill()
            run.process.wait()
    assert "ConnectionError" in run.output or "ConnectionRefusedError" in run.output
    state = read_checkpoint(run.reader_path / "checkpoints" / "step-24").state
    trained = run.reader().trained_ordinals()
    waiting = [group.ordinal for group in state.buffer.ready] + list(state.buffer.to_restart)
    num_failed = state.buffer.totals["failed"]
    assert num_failed > 0
    assert len(trained) == len({*trained}) == 24 * 3
    assert not {*trained} & {*waiting}
    assert len(trained) + len(waiting) + num_failed == state.cursor


@pytest.mark.slow
def test_an_episode_over_http_without_a_web_server_is_refused_before_the_run(tmp_path: Path) -> None:
    recipe = make_run(tmp_path)
    (tmp_path / "over_http.py").write_text(
        "async def episode(task, policy):\n    return float(len(policy.base_url))\n"
    )
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "uvicorn.py").write_text("raise ImportError(\"No module named 'uvicorn'\")\n")
    command = [sys.executable, "-m", "freerun.cli.main", "train", str(recipe), *SESSIONS]
    done = subprocess.run(
        [*command, "--rollout.episode", "over_http:episode"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{missing}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2, done.stderr
    [error] = done.stderr.splitlines()
    assert "policy.base_url need a web server (No module named 'uvicorn'); pip install 'freerun[agents]'" in error
    assert not (tmp_path / "runs").exists()
