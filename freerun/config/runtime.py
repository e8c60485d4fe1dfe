"""Where the workers of a run live, and how long they may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freerun.config.checks import require, require_positive


@dataclass(frozen=True)
class RuntimeConfig:
    backend: Literal["local", "ray"] = "local"
    """local starts the workers as processes of this machine, ray as actors of a Ray cluster."""
    address: str = ""
    """Ray cluster to join, host:port of its head or auto; empty starts one on this machine."""
    silence_seconds: float = 30.0
    """A worker that says nothing for this long, not even that it is alive, is killed."""
    stall_seconds: float = 300.0
    """A worker that has work and makes no progress for this long is killed."""
    start_seconds: float = 180.0
    """Time a worker has to start and load its model."""
    max_worker_restarts: int = 3
    """Rollout workers restarted before the run gives up."""

    def __post_init__(self) -> None:
        require_positive(
            "runtime",
            silence_seconds=self.silence_seconds,
            stall_seconds=self.stall_seconds,
            start_seconds=self.start_seconds,
        )
        require(self.max_worker_restarts >= 0, "runtime.max_worker_restarts must be 0 or more")
        require(
            self.backend == "ray" or not self.address,
            f'runtime.address = "{self.address}" is the address of a Ray cluster; set runtime.backend = "ray"',
        )
