"""A launcher on a cluster in miniature, and workers that only have weights (`weight_worker.py`)."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import Cluster  # before all that imports Ray
from weight_worker import FromWorker

from freerun.backends.ray.cluster import RayLauncher
from freerun.backends.ray.link import RayLink
from freerun.config.load import make_recipe
from freerun.processes.link import WorkerJob, WorkerRole

NUM_BYTES = 30_000_001


class Workers:
    """A trainer and rollout workers, each as `weight_worker.py`."""

    def __init__(self, launcher: RayLauncher) -> None:
        self.launcher = launcher

    async def start(self, *names: str) -> list[RayLink[Any]]:
        links = []
        for name in names:
            role: WorkerRole = "trainer" if name == "trainer" else "rollout"
            job = WorkerJob(name, role, "weight_worker", weights=self.launcher.weights)
            links.append(await self.launcher.launch(job, FromWorker))
        return links


Act = Callable[[Workers], Awaitable[None]]
WithWorkers = Callable[[Act], None]


async def answer(link: RayLink[Any]) -> Any:
    async with asyncio.timeout(60):
        return await link.receive()


def run_with_workers(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, num_rollout_workers: int
) -> WithWorkers:
    """Runs a coroutine of a test with a launcher, and closes it."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "model").mkdir()
    overrides = ["--runtime.backend", "ray", "--runtime.address", cluster.address]
    overrides += ["--engine.num_workers", str(num_rollout_workers), "--model.path", str(tmp_path / "model")]
    recipe = make_recipe("test", overrides)

    def run(act: Act) -> None:
        async def main() -> None:
            launcher = RayLauncher(recipe, tmp_path / "logs", publishes=True)
            try:
                await act(Workers(launcher))
            finally:
                await launcher.close()

        asyncio.run(main())

    return run
