"""Roles that move: the cores of rollout workers that have nothing to do are the trainer's.

    core 0   rollout-0 generates ▮▮▮▮▮▮▮▮ the gate is shut ┄┄┄┄┄┄┄┄┄┄┄ rollout-0 generates ▮▮▮▮
    core 1   trainer ▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮ trainer on cores 0 and 1 ▮▮▮ trainer ▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮

Where computing is the limit, an engine is soon `max_staleness` batches ahead and stands still until the next
version; so does a synchronous one during every step. The policy is this file: a rollout worker without a request
under way offers its cores, the first request or load that it gets takes them back. Whether the trainer is faster
with them is measured where it trains (`trainer_cores.py`); it declines what does not help.

The other way round needs no policy: rollout workers beyond the free cores sit on the trainer's
(`freerun.processes.placement`) and generate while it waits for a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class CoreLending:
    """Knows who is idle; says which cores the trainer may use whenever that changes."""

    def __init__(
        self,
        *,
        trainer_cores: tuple[int, ...],
        rollout_cores: Mapping[str, tuple[int, ...]],
        offer: Callable[[tuple[int, ...]], None],
    ) -> None:
        self.trainer_cores = trainer_cores
        """Its own; what else it computes on is borrowed."""
        self._rollout_cores = rollout_cores
        self._offer = offer
        self._busy: set[str] = set(rollout_cores)
        """Until it is known to be idle: a worker that starts reads its model."""
        self._offered = trainer_cores

    def note(self, worker: str, *, is_busy: bool) -> None:
        """A rollout worker has something to compute, or no longer."""
        (self._busy.add if is_busy else self._busy.discard)(worker)
        cores = self._free_cores()
        if cores != self._offered:
            self._offered = cores
            self._offer(cores)

    def _free_cores(self) -> tuple[int, ...]:
        """The trainer's own, and those where nobody generates.

        Only its own while somebody generates there: a team of threads is as slow as the one that shares its core.
        """
        in_use = {core for worker in self._busy for core in self._rollout_cores[worker]}
        if in_use & {*self.trainer_cores}:
            return self.trainer_cores
        all_cores = {core for cores in self._rollout_cores.values() for core in cores}
        return tuple(sorted({*self.trainer_cores, *(all_cores - in_use)}))
