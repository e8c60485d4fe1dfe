"""Where the workers of a run are started, and how long they may take."""

from dataclasses import dataclass
from typing import Literal

from freerun.config.section import Section, require
from freerun.config.values import CountOrNone, Seconds


@dataclass(frozen=True)
class RuntimeConfig(Section, name="runtime"):
    backend: Literal["local", "ray"] = "local"
    """local starts the workers as processes of this machine, ray as actors of a Ray cluster."""
    address: str = ""
    """Ray cluster to join, host:port of its head or auto; empty starts one on this machine."""
    silence_seconds: Seconds = 30.0
    """A worker that sends nothing for this long, not even a heartbeat, is killed."""
    stall_seconds: Seconds = 300.0
    """A worker that has work and makes no progress for this long is killed."""
    start_seconds: Seconds = 180.0
    """Time a worker has to start and load its model."""
    max_worker_restarts: CountOrNone = 3
    """Rollout workers restarted before the run gives up."""

    def check(self) -> None:
        require(
            self.backend == "ray" or not self.address,
            f'runtime.address = "{self.address}" is the address of a Ray cluster; set runtime.backend = "ray"',
        )
