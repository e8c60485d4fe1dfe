"""Whole runs of `rollout.tools` and `rollout.command`: a model that can call tools, MCP servers, a program."""

import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from calling_models import make_calling_model, make_calling_run
from free_ports import free_port
from tiny_runs import ROOT, Run, are_gone, assert_exactly_once

from freerun.controller.checkpoint import read_checkpoint
from freerun.events.schema import TrajectoryRow

FUNCTION = "tests.support.sum_tools:add"
PROGRAM = ROOT / "tests" / "support" / "sum_tools.py"
AGENT = PROGRAM.with_name("asking_agent.py")
SERVER = f"mcp:{shlex.quote(sys.executable)} {shlex.quote(str(PROGRAM))}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_calling_model(tmp_path_factory.mktemp("calling"))


def trained(run: Run, num_steps: int) -> list[TrajectoryRow]:
    with run.reader() as reader:
        return [t for version in range(1, num_steps + 1) for t in reader.trajectories(version)]


def assert_calls_are_trained(run: Run, num_steps: int) -> None:
    """Sampled call, given result, sampled answer; loss and logprobs agree with the engine."""
    trajectories = trained(run, num_steps)
    with_result = [t for t in trajectories if any(span.version is None for span in t.spans)]
    assert len(with_result) > 10
    for trajectory in with_result:
        sampled = [span.call for span in trajectory.spans if span.version is not None]
        assert sampled[0] == 0
        assert sampled[-1] >= 1
        assert trajectory.spans[-1].version is not None
    assert any(t.reward > 0 for t in with_result), "with the tool's result the answer is right"
    with run.reader() as reader:
        divergences = [s.metrics.get("engine_trainer_kl", 0.0) for s in reader.steps()]
    assert 0 < max(divergences) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("tools", [FUNCTION, SERVER], ids=["function", "mcp"])
def test_a_policy_with_a_tool_is_trained_on_its_calls_and_answers(tmp_path: Path, model: Path, tools: str) -> None:
    run = Run(make_calling_run(tmp_path, model), "--rollout.tools", tools)
    run.until_step(2)
    workers = run.workers()
    assert run.wait() == 0, run.output
    assert are_gone(workers)
    assert_exactly_once(run, num_steps=12)
    assert_calls_are_trained(run, 12)


@pytest.mark.slow
def test_a_program_that_speaks_to_the_endpoint_is_trained(tmp_path: Path, model: Path) -> None:
    overrides = ("--rollout.command", shlex.join([sys.executable, str(AGENT)]), "--train.num_steps", "3")
    run = Run(make_calling_run(tmp_path, model), *overrides)
    assert run.wait() == 0, run.output
    assert_exactly_once(run, num_steps=3)
    trajectories = trained(run, 3)
    assert len(trajectories) == 3 * 3 * 4
    assert all(span.call == 0 and span.version is not None for t in trajectories for span in t.spans)


@pytest.mark.slow
def test_an_mcp_server_that_is_killed_is_started_again_and_loses_no_session(tmp_path: Path, model: Path) -> None:
    run = Run(make_calling_run(tmp_path, model), "--rollout.tools", SERVER, "--train.num_steps", "30")
    killed: list[int] = []
    for step in (3, 8):
        run.until_step(step)
        run.until(lambda: any(server.pid not in killed for server in run.workers(PROGRAM.name)))
        for server in run.workers(PROGRAM.name):
            killed.append(server.pid)
            server.kill()
    run.until(lambda: any(server.pid not in killed for server in run.workers(PROGRAM.name)))
    workers = run.workers()
    assert run.wait() == 0, run.output
    assert are_gone(workers)
    assert_exactly_once(run, num_steps=30)
    assert_calls_are_trained(run, 30)


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def listening(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The server over HTTP, when it listens."""
    with subprocess.Popen([sys.executable, str(PROGRAM), str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            while not is_open(port):
                assert server.poll() is None
                time.sleep(0.05)
            yield server
        finally:
            server.kill()


@pytest.mark.slow
def test_an_mcp_server_that_is_gone_for_a_while_costs_only_the_groups_that_needed_it(
    tmp_path: Path, model: Path
) -> None:
    port = free_port()
    tools = ("--rollout.tools", f"mcp:http://127.0.0.1:{port}/mcp", "--train.num_steps", "24")
    patient = ("--reward.max_failures_in_row", "1000000")
    run = None
    try:
        with listening(port) as server:
            run = Run(make_calling_run(tmp_path, model), *tools, *patient)
            run.until_step(3)
            server.kill()
            server.wait()
            run.until(lambda: "failed" in run.output)
        with listening(port):
            assert run.wait() == 0, run.output
    finally:
        if run is not None:
            run.process.kill()
            run.process.wait()
    assert "cannot be reached" in run.output
    state = read_checkpoint(run.reader_path / "checkpoints" / "step-24").state
    ordinals = run.reader().trained_ordinals()
    waiting = [group.ordinal for group in state.buffer.ready] + list(state.buffer.to_restart)
    num_failed = state.buffer.totals["failed"]
    assert num_failed > 0
    assert len(ordinals) == len({*ordinals}) == 24 * 3
    assert not {*ordinals} & {*waiting}
    assert len(ordinals) + len(waiting) + num_failed == state.cursor
    assert_calls_are_trained(run, 24)
