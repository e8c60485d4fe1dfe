"""Core lending: the trainer borrows the cores of idle rollout workers.

    core 0   rollout-0 generates ▮▮▮▮▮▮▮▮ the gate is shut ┄┄┄┄┄┄┄┄┄┄┄ rollout-0 generates ▮▮▮▮
    core 1   trainer ▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮ trainer on cores 0 and 1 ▮▮▮ trainer ▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮▮

Where compute is the limit, an engine soon is `max_staleness` batches ahead and idles until the next version; a
synchronous one idles during every step. The policy: a rollout worker without requests lends its cores, and takes
them back with its next request or load. The trainer measures whether they make it faster (`trainer_cores.py`) and
declines what does not help.

The opposite direction needs no policy: rollout workers that exceed the free cores share the trainer's
(`freerun.processes.placement`) and generate while it waits for a batch.
"""

from collections.abc import Callable, Mapping


class CoreLending:
    """Tracks idle workers; reports the cores that the trainer may use whenever they change."""

    def __init__(
        self,
        *,
        trainer_cores: tuple[int, ...],
        rollout_cores: Mapping[str, tuple[int, ...]],
        offer: Callable[[tuple[int, ...]], None],
    ) -> None:
        self.trainer_cores = trainer_cores
        """The trainer's own cores; all others are borrowed."""
        self._rollout_cores = rollout_cores
        self._offer = offer
        self._busy: set[str] = set(rollout_cores)
        """Busy until known to be idle: a worker that starts is reading its model."""
        self._offered = trainer_cores

    def note(self, worker: str, *, is_busy: bool) -> None:
        (self._busy.add if is_busy else self._busy.discard)(worker)
        cores = self._free_cores()
        if cores != self._offered:
            self._offered = cores
            self._offer(cores)

    def _free_cores(self) -> tuple[int, ...]:
        """The trainer's own cores and those of idle workers.

        Only the trainer's own while a worker generates on them: a team is as slow as its slowest thread.
        """
        in_use = {core for worker in self._busy for core in self._rollout_cores[worker]}
        if in_use & {*self.trainer_cores}:
            return self.trainer_cores
        all_cores = {core for cores in self._rollout_cores.values() for core in cores}
        return tuple(sorted({*self.trainer_cores, *(all_cores - in_use)}))
