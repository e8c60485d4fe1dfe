"""Launches workers on a Ray cluster: one started on this machine for the run, or one that is joined.

    launch ──► placement group ──► actor (`host.py`) ──► the worker's process
                                     ▲
    RayLink (`link.py`) ─────────┘

Ray chooses the node; the actor then reports its machine and claims cores there. A cluster without token
authentication is refused, because anyone who reaches it could run code on its machines. Ray reads its environment
when it is imported, so call `access.prepare_environment` before importing this module.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from freerun.backends.ray.access import RAY_TOKEN_VARIABLE, TOKEN_BYTES
from freerun.backends.ray.demand import WorkerGroup, groups_of
from freerun.backends.ray.guard import start_guard
from freerun.backends.ray.host import Host
from freerun.backends.ray.link import BufferHolders, RayLink, Site
from freerun.config.recipe import Recipe
from freerun.errors import ConfigError, WorkerError
from freerun.processes.link import WorkerJob
from freerun.types import WeightRoute

CONNECT_SECONDS = 10.0
HEALTH_SECONDS = 60.0


class RayLauncher:
    """Implements `link.Launcher`; holds the cluster until it is closed."""

    def __init__(self, recipe: Recipe, logs: Path, *, publishes: bool) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        if recipe.runtime.address:
            _join(recipe.runtime.address)
        else:
            _start(sum(len(g.names) * g.demand.num_cpus for g in groups_of(recipe, has_gpus=False)))
        has_gpus = ray.cluster_resources().get("GPU", 0) > 0
        self._groups = {name: group for group in groups_of(recipe, has_gpus=has_gpus) for name in group.names}
        self._shared: dict[WorkerGroup, PlacementGroup] = {}
        self._make_host = ray.remote(Host).options
        directory = os.getcwd()
        self._site = Site(
            logs=logs,
            directory=directory,
            python_path=os.environ.get("PYTHONPATH", ""),
            paths=(
                directory,
                str(logs.resolve()),
                *([str(Path(recipe.model.path).resolve())] if publishes else []),
            ),
        )
        self._holders = BufferHolders()
        self.weights: WeightRoute | None = None
        if publishes:
            address = f"freerun-{secrets.token_hex(8)}"
            self.weights = WeightRoute(channel="ray", address=address, dtype=recipe.engine.dtype)

    async def launch(self, job: WorkerJob, receives: Any) -> RayLink[Any]:
        group = self._groups[job.name]
        place, on_end = self._place(job, group)
        publisher = job.weights.address if job.weights and job.role == "trainer" else None
        host = self._make_host(
            num_cpus=group.demand.num_cpus,
            num_gpus=group.demand.num_gpus,
            memory=group.demand.memory_bytes or None,
            max_restarts=0,
            name=publisher,
            scheduling_strategy=PlacementGroupSchedulingStrategy(place, group.names.index(job.name)),
        ).remote()
        return RayLink(
            job,
            host,
            receives,
            demand=group.demand,
            site=self._site,
            holders=self._holders,
            on_end=on_end,
        )

    def _place(self, job: WorkerJob, group: WorkerGroup) -> tuple[PlacementGroup, Callable[[], None]]:
        """The placement group to start the worker in, and what to call when the worker is gone."""
        if job.role == "rollout":
            own = _place_together(group)
            return own, lambda: remove_placement_group(own)
        # Ray itself places the lost bundles of a shared group again, and the successor in them.
        if group not in self._shared:
            self._shared[group] = _place_together(group)
        return self._shared[group], lambda: None

    def pids(self) -> dict[str, int]:
        return {}  # they belong to the cluster, wherever they run

    async def close(self) -> None:
        """Leave the cluster, or stop the one that was started, with everything that still runs in it."""
        ray.shutdown()


def _place_together(group: WorkerGroup) -> PlacementGroup:
    placed: PlacementGroup = placement_group([group.demand.bundle] * len(group.names), strategy="PACK")
    return placed


def _start(num_cpus: int) -> None:
    """A cluster of this machine for this run: on loopback, with a token only its processes know."""
    start_guard()
    with _signals_kept():
        ray.init(
            address="local",
            # With more threads than cores, workers share cores, as in a local run, instead of waiting forever.
            num_cpus=max(num_cpus, len(os.sched_getaffinity(0))),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _system_config={"worker_niceness": 0},
        )


def _join(address: str) -> None:
    try:
        if address != "auto" and "://" not in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        with _signals_kept():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RayError, RuntimeError, ValueError) as error:
        raise WorkerError(
            f'runtime.address = "{address}": the Ray cluster cannot be joined ({_first_line(error)}); is it '
            "running, with a node on this machine, and is the token here the cluster's? (docs/ray.md)"
        ) from error
    if not _refuses_strangers(ray.get_runtime_context().gcs_address):
        ray.shutdown()
        raise ConfigError(
            f'runtime.address = "{address}": this Ray cluster runs without authentication: anyone who '
            "reaches it can run code on it; make a token (ray get-auth-token --generate) and start its nodes with "
            "RAY_AUTH_MODE=token (docs/ray.md)"
        )


def _refuses_strangers(address: str) -> bool:
    """Whether the cluster rejects a wrong token; another process asks, because this one has the right one."""
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check", "--address", address]
    stranger = os.environ | {RAY_TOKEN_VARIABLE: secrets.token_hex(TOKEN_BYTES)}
    try:
        probe = subprocess.run(command, env=stranger, capture_output=True, timeout=HEALTH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise WorkerError(f"the Ray cluster at {address} did not answer within {HEALTH_SECONDS:.0f} s") from None
    # Any other failure proves nothing: a cluster that did not answer may be open to all.
    return probe.returncode != 0 and b"AuthenticationError" in probe.stderr + probe.stdout


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore our handlers: Ray installs one for SIGTERM, where a run finishes its step and saves."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
            signal.siginterrupt(number, False)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
