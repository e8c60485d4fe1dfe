"""A Ray cluster in miniature: several nodes on this machine, on loopback, with a token.

Ray reads its environment when it is imported: this module sets it, so it comes before any import of Ray.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
from process_table import command_of

os.environ |= {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

from ray.cluster_utils import Cluster as Cluster

MODULES = ("freerun.workers.", "freerun.reward.worker", "weight_worker")
SOON_DEAD = {  # A lost node is noticed in three seconds.
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,
    "gcs_rpc_server_reconnect_timeout_s": 5,
}


@contextmanager
def head_without_cpus() -> Iterator[Cluster]:
    """A cluster whose head has room for the controller only: tests add the nodes that work."""
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": SOON_DEAD}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield cluster
    finally:
        cluster.shutdown()


@contextmanager
def nodes(cluster: Cluster) -> Iterator[Callable[[int], object]]:
    """Adds nodes with a number of CPUs; removes those that are left."""
    try:
        yield lambda num_cpus: cluster.add_node(num_cpus=num_cpus)
    finally:
        for node in list(cluster.worker_nodes):
            cluster.remove_node(node)


def joining(cluster: Cluster, *arguments: str) -> tuple[str, ...]:
    return ("--runtime.backend", "ray", "--runtime.address", cluster.address, *arguments)


def workers_on(node: object) -> list[psutil.Process]:
    """Processes of ours below a node's raylet."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)  # type: ignore[attr-defined]
    return [process for process in raylet.children(recursive=True) if is_ours(process)]


def is_ours(process: psutil.Process) -> bool:
    return any(module in command_of(process) for module in MODULES)


def wait_for_end(processes: list[psutil.Process]) -> None:
    """Until none is running; one that only waits for its parent to look at its status is not."""

    def is_running(process: psutil.Process) -> bool:
        try:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    deadline = time.monotonic() + 30
    while left := [process for process in processes if is_running(process)]:
        assert time.monotonic() < deadline, f"waited 30 s for the end of {left}"
        time.sleep(0.1)


def wait_until(happened: Callable[[], bool], what: str, timeout_seconds: float = 60) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not happened():
        assert time.monotonic() < deadline, f"waited {timeout_seconds:.0f} s for {what}"
        time.sleep(0.1)
