"""Where the workers of a run live, and how long they may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from freerun.config.checks import COUNT_OR_NONE, SECONDS, require, require_ranges


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
        require_ranges(
            "runtime",
            self,
            silence_seconds=SECONDS,
            stall_seconds=SECONDS,
            start_seconds=SECONDS,
            max_worker_restarts=COUNT_OR_NONE,
        )
        require(
            self.backend == "ray" or not self.address,
            f'runtime.address = "{self.address}" is the address of a Ray cluster; set runtime.backend = "ray"',
        )
