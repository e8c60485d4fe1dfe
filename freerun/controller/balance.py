"""Balance: how many rollout workers keep the trainer busy, and no more.

    gate closed, trainer busy      rollouts are faster than training       retire a worker
    gate open, trainer waits       training is faster than rollouts        add one
    neither for long               balanced                                nothing

The signal of a step is the share of its time for which the gate was closed, minus the share for which the trainer
waited. Both show an imbalance at once. The load of the engines does not: an engine with a single sequence is busy.
Nor does the trainer's waiting alone: a buffer of `max_staleness` batches hides a shortage for that many steps.

The signal is smoothed and has a dead band. A move needs three steps since the last move; the first of them is
ignored, because it began before that move. If N workers are too few and N + 1 too many, no number is balanced. The
trainer's time is then worth more: a worker is added as soon as the trainer waits, and each addition that undoes a
retirement doubles the number of steps the next retirement needs. So the control settles on the larger number.
"""

from typing import Literal, Protocol

from freerun.events.events import AnyEvent, Listener, Notice, StepFinished

NEWEST_WEIGHT = 0.5
"""Weight of the newest step in the smoothed signal."""
DEAD_BAND = 0.15
STEPS_BETWEEN_MOVES = 3
MAX_STEPS_TO_RETIRE = 96
"""Upper limit of the steps a retirement needs, reached after many retirements were undone."""
Move = Literal[-1, 0, 1]
"""-1 retires a worker, 0 keeps all, 1 adds one."""


class BalancePolicy:
    """Chooses a move after each step; knows neither clock nor workers."""

    def __init__(self, *, fewest: int, most: int) -> None:
        self._fewest = fewest
        self._most = most
        self._signal = 0.0
        self._num_steps = 0
        """Steps since the last move, or since the start."""
        self._steps_to_retire = STEPS_BETWEEN_MOVES
        self._last: Move = 0

    def note(self, *, gate_share: float, wait_share: float, num_workers: int) -> Move:
        """Choose a move after a step; the shares are of the step's time, `num_workers` is the current number."""
        self._num_steps += 1
        if self._num_steps == 1:
            return 0
        self._signal += NEWEST_WEIGHT * (gate_share - wait_share - self._signal)
        if self._signal < -DEAD_BAND and self._num_steps >= STEPS_BETWEEN_MOVES and num_workers < self._most:
            if self._last == -1:
                self._steps_to_retire = min(MAX_STEPS_TO_RETIRE, 2 * self._steps_to_retire)
            return self._move(1)
        if self._signal > DEAD_BAND and self._num_steps >= self._steps_to_retire and num_workers > self._fewest:
            return self._move(-1)
        return 0

    def _move(self, move: Move) -> Move:
        self._signal, self._num_steps, self._last = 0.0, 0, move
        return move


class ElasticWorkers(Protocol):
    """Rollout workers whose number may change; `workers.rollout_pool.RolloutPool` implements it."""

    @property
    def num_workers(self) -> int:
        """Workers that are not retiring, ready or not."""
        ...

    def add(self) -> str:
        """Add a worker; returns its name, or an empty string if none can be added now."""
        ...

    def retire(self) -> str:
        """Retire a worker once it has finished its requests; returns its name, empty if none can be spared now."""
        ...


class WorkerBalance:
    """A listener that adds or retires workers after the steps of a run, and emits a notice of each move."""

    def __init__(self, workers: ElasticWorkers, *, fewest: int, most: int, emit: Listener) -> None:
        self._workers = workers
        self._policy = BalancePolicy(fewest=fewest, most=most)
        self._most = most
        self._emit = emit
        self._before: float | None = None
        """When the previous step ended."""

    def __call__(self, event: AnyEvent) -> None:
        if not isinstance(event, StepFinished):
            return
        before, self._before = self._before, event.seconds
        if before is None or event.seconds <= before:
            return
        elapsed = event.seconds - before
        gate_share = min(1.0, event.result.metrics["gate_closed_seconds"] / elapsed)
        wait_share = min(1.0, event.wait_seconds / elapsed)
        workers = self._workers
        move = self._policy.note(gate_share=gate_share, wait_share=wait_share, num_workers=workers.num_workers)
        if move == -1 and (name := workers.retire()):
            self._say(event, f"{name} retires: the gate was closed {gate_share:.0%} of the last step")
        elif move == 1 and (name := workers.add()):
            self._say(event, f"{name} is added: the trainer waited {wait_share:.0%} of the last step")

    def _say(self, event: StepFinished, text: str) -> None:
        number = f"{self._workers.num_workers} of {self._most} rollout workers"
        self._emit(Notice(seconds=event.seconds, text=f"{text}; {number}"))
