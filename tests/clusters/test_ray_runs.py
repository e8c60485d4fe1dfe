"""Real runs on a real Ray cluster of several nodes: the same run as on one machine, whoever comes and goes."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from process_table import command_of
from ray_clusters import head_without_cpus, is_ours, joining, nodes, wait_for_end, workers_on
from safetensors.numpy import load_file
from tiny_runs import ROOT, Run, assert_exactly_once, make_run

from freerun.events.events import EngineReport

Cluster = object
AddNode = Callable[[int], object]
Begin = Callable[..., Run]
SLOWLY = ("--reward.grader", "tests.support.lively_grader:slow_score")
ELASTIC = (
    "--engine.num_workers", "2", "--engine.min_workers", "1", "--engine.num_slots", "2",
    "--objective.advantage", "tests.support.slow_then_quick:advantage",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with head_without_cpus() as cluster:
        yield cluster


@pytest.fixture
def add_node(cluster: Cluster) -> Iterator[AddNode]:
    with nodes(cluster) as add:
        yield add


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts runs; what a failed test leaves of them is killed."""
    runs: list[Run] = []

    def start(recipe: Path, *arguments: str) -> Run:
        runs.append(Run(recipe, *arguments))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.kill()


def wait_for(run: Run, node: object, module: str) -> None:
    """Until a worker of this module runs on the node."""
    run.until(lambda: any(module in command_of(process) for process in workers_on(node)))


def staleness_of(run: Run, num_steps: int) -> int:
    return max(t.staleness for v in range(1, num_steps + 1) for t in run.reader().trajectories(v))


def busy_workers(run: Run) -> set[str]:
    with run.reader() as reader:
        reports = reader.events("engine_report")
        return {r.worker for r in reports if isinstance(r, EngineReport) and r.stats.num_tokens > 0}


def test_a_run_on_two_nodes_trains_on_every_prompt_once(
    tmp_path: Path, begin: Begin, cluster: Cluster, add_node: AddNode
) -> None:
    add_node(1)
    add_node(2)
    arguments = joining(cluster, "--engine.num_workers", "2", "--train.num_steps", "10")
    run = begin(make_run(tmp_path), *arguments)
    assert run.wait() == 0, run.output
    assert_exactly_once(run, num_steps=10)
    assert staleness_of(run, 10) <= 4
    assert busy_workers(run) == {"rollout-0", "rollout-1"}


def test_a_synchronous_run_is_the_same_as_on_one_machine(
    tmp_path: Path, begin: Begin, cluster: Cluster, add_node: AddNode
) -> None:
    add_node(1)
    add_node(1)
    ends = []
    # Threads are fixed: here the trainer would borrow cores, there it would not, and sums would differ.
    overrides = ("--buffer.max_staleness", "0", "--train.num_steps", "6", "--train.num_threads", "1")
    for name, where in (("here", ()), ("there", joining(cluster))):
        (tmp_path / name).mkdir()
        run = begin(make_run(tmp_path / name), *overrides, *where)
        assert run.wait() == 0, run.output
        with run.reader() as reader:
            rewards = [t.reward for version in range(1, 7) for t in reader.trajectories(version)]
        ends.append(
            (rewards, load_file(run.reader_path / "checkpoints" / "step-6" / "model" / "model.safetensors"))
        )
    (local_rewards, local_weights), (rewards, weights) = ends
    assert rewards == local_rewards
    assert all((weights[name] == local_weights[name]).all() for name in local_weights)


def test_workers_join_with_their_node_and_a_lost_node_takes_nothing_along(
    tmp_path: Path, begin: Begin, cluster: Cluster, add_node: AddNode
) -> None:
    trainer_node = add_node(1)
    arguments = joining(cluster, "--engine.num_workers", "2", "--train.num_steps", "2000", *SLOWLY)
    run = begin(make_run(tmp_path), *arguments)
    wait_for(run, trainer_node, "train_worker")
    first = add_node(1)
    run.until_step(2)
    assert busy_workers(run) <= {"rollout-0"}
    second = add_node(1)
    run.until(lambda: busy_workers(run) == {"rollout-0", "rollout-1"})
    lost = workers_on(first)
    assert any("rollout_worker" in command_of(worker) for worker in lost)
    cluster.remove_node(first, allow_graceful=False)  # type: ignore[attr-defined]
    wait_for_end(lost)
    assert workers_on(second)
    run.until(lambda: "rollout-0 on node 127.0.0.1 is lost" in run.output)
    run.until_step(run.num_steps + 10)
    run.process.terminate()
    assert run.wait() == 130, run.output
    num_steps = run.num_steps
    assert_exactly_once(run, num_steps=num_steps)
    assert staleness_of(run, num_steps) <= 4


def test_a_worker_retires_gives_its_cpu_back_and_another_comes(
    tmp_path: Path, begin: Begin, cluster: Cluster, add_node: AddNode
) -> None:
    both = [add_node(1), add_node(2)]

    def rollout_workers() -> set[psutil.Process]:
        return {p for node in both for p in workers_on(node) if "rollout_worker" in command_of(p)}

    run = begin(make_run(tmp_path), *joining(cluster, "--train.num_steps", "2000", *ELASTIC))
    run.until_step(1)
    first = rollout_workers()
    assert len(first) == 2
    run.until(lambda: "1 of 2 rollout workers" in run.output)
    run.until(lambda: len(rollout_workers()) == 1)
    run.until(lambda: len(rollout_workers()) == 2)
    assert len(rollout_workers() - first) == 1, "another process in the place of the retired one"
    assert "is added: the trainer waited" in run.output
    run.until_step(run.num_steps + 10)
    run.process.terminate()
    assert run.wait() == 130, run.output
    assert "died" not in run.output
    num_steps = run.num_steps
    assert_exactly_once(run, num_steps=num_steps)
    assert staleness_of(run, num_steps) <= 4


def test_a_lost_trainer_stops_the_run_and_resume_goes_on(
    tmp_path: Path, begin: Begin, cluster: Cluster, add_node: AddNode
) -> None:
    recipe = make_run(tmp_path)
    trainer_node = add_node(1)
    arguments = joining(cluster, "--train.num_steps", "400", "--checkpoint.every_steps", "2", *SLOWLY)
    run = begin(recipe, *arguments)
    wait_for(run, trainer_node, "train_worker")
    add_node(1)
    run.until_saved(4)
    cluster.remove_node(trainer_node, allow_graceful=False)  # type: ignore[attr-defined]
    assert run.wait() == 1
    assert "the trainer is gone: trainer on node 127.0.0.1 is lost" in run.output
    assert "--resume" in run.output
    num_steps = run.num_steps + 4
    add_node(1)
    resumed = begin(recipe, "--resume", *joining(cluster, "--train.num_steps", str(num_steps)))
    assert resumed.wait() == 0, resumed.output
    assert_exactly_once(resumed, num_steps=num_steps)


def test_a_run_that_finds_no_room_says_what_it_wants(tmp_path: Path, begin: Begin, cluster: Cluster) -> None:
    run = begin(make_run(tmp_path), *joining(cluster, "--runtime.start_seconds", "6"))
    assert run.wait() == 1
    assert "waits for room in the cluster: 1 CPU wanted, free: 0 CPU" in run.output


def test_a_killed_controller_leaves_no_process_on_a_cluster_that_lives_on(
    tmp_path: Path, begin: Begin, cluster: Cluster, add_node: AddNode
) -> None:
    node = add_node(2)
    run = begin(make_run(tmp_path), *joining(cluster, "--train.num_steps", "400"))
    run.until_step(3)
    workers = workers_on(node) + workers_on(cluster.head_node)  # type: ignore[attr-defined]
    run.kill()
    assert len(workers) >= 3, "a rollout worker, the trainer, graders"
    wait_for_end(workers)


def test_a_killed_controller_takes_the_cluster_that_it_started_along(tmp_path: Path, begin: Begin) -> None:
    run = begin(make_run(tmp_path), "--runtime.backend", "ray", "--train.num_steps", "400")
    run.until_step(3)
    started = run.workers()
    ours = [process for process in started if is_ours(process)]
    assert len(ours) >= 3
    raylet = next(process for process in started if process.name() == "raylet")
    token = raylet.environ()["RAY_AUTH_TOKEN"]
    assert token != os.environ["RAY_AUTH_TOKEN"], "every cluster has its own"
    assert all(token not in command_of(process) for process in started)
    assert all("RAY_AUTH_TOKEN" not in process.environ() for process in ours)
    addresses = {c.laddr.ip.removeprefix("::ffff:") for p in started for c in listening(p)}
    assert addresses == {"127.0.0.1"}
    run.kill()
    wait_for_end(started)


def listening(process: psutil.Process) -> list[Any]:
    return [c for c in process.net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]


def test_a_stop_signal_saves_and_leaves_the_cluster(tmp_path: Path, begin: Begin) -> None:
    run = begin(make_run(tmp_path), "--runtime.backend", "ray", "--train.num_steps", "400")
    run.until_step(3)
    started = run.workers()
    run.process.terminate()
    assert run.wait() == 130, run.output
    assert "checkpoint" in run.output
    wait_for_end(started)


@pytest.mark.parametrize("token", ["", "0" * 64], ids=["none", "wrong"])
def test_a_cluster_is_not_joined_without_its_token(
    tmp_path: Path, begin: Begin, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    run = begin(make_run(tmp_path), *joining(cluster))
    # Without one it is refused before there is a run; that it is wrong is known only to the cluster.
    assert run.wait() == (1 if token else 2)
    expected = "the Ray cluster cannot be joined" if token else "the token of this Ray cluster is not here"
    assert expected in run.output


def test_an_address_where_nobody_answers_is_an_error_at_once(tmp_path: Path, begin: Begin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    run = begin(make_run(tmp_path), "--runtime.backend", "ray", "--runtime.address", f"127.0.0.1:{port}")
    assert run.wait(60) == 1
    assert f'runtime.address = "127.0.0.1:{port}": the Ray cluster cannot be joined' in run.output


OPEN_CLUSTER = """
import os, sys
os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def test_a_cluster_that_asks_for_no_token_is_refused(tmp_path: Path, begin: Begin) -> None:
    command = [sys.executable, "-c", OPEN_CLUSTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        address = next(line.split()[1] for line in other.stdout if line.startswith("address"))
        run = begin(make_run(tmp_path), "--runtime.backend", "ray", "--runtime.address", address)
        assert run.wait() == 1
        other.stdin.close()
    assert "runs without authentication" in run.output


def test_a_node_that_does_not_see_the_model_is_named(
    tmp_path: Path, begin: Begin, cluster: Cluster, add_node: AddNode
) -> None:
    add_node(2)
    recipe = make_run(tmp_path)
    run = begin(recipe, *joining(cluster))
    run.until(lambda: "started" in run.output)
    (tmp_path / "model").rename(tmp_path / "hidden")
    assert run.wait() == 1
    assert f"{tmp_path}/model does not exist on node 127.0.0.1" in run.output
