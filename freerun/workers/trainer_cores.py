"""The cores that a trainer computes on, which may change in the middle of a step.

A step of a large model takes minutes on a CPU, one block a fraction of a second. So the trainer takes over
offered cores, and gives back those that are asked for, at the next block of the forward or backward pass. The
head cannot be interrupted between its forward and its backward.

More threads are not always faster: on tiny models OpenMP costs more than a second core gains. So the time per
token in a block is measured for each number of threads, and an offer that did not shorten it is declined for a
while. Only blocks with a backward pass are measured: blocks without gradients store less and are faster with any
number of threads.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from freerun.model.decoder import Decoder

GAIN = 1.05
"""The speed-up that more threads must reach."""
NUM_TRIALS = 30
"""Blocks measured with a number of threads before it is judged."""
NUM_DECLINED = 3000
"""Blocks after which a rejected number of threads is tried again."""
SMOOTHING = 0.1


class ThreadRates:
    """Measures seconds per token in a block for each number of threads; decides whether more threads pay off."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._num_measured: dict[int, int] = {}
        self._num_declined = 0

    def measure(self, num_threads: int, seconds_per_token: float) -> None:
        is_cold = self._num_measured.get(num_threads, 0) == 0
        self._num_measured[num_threads] = self._num_measured.get(num_threads, 0) + 1
        if is_cold:  # threads were started and pages allocated during it
            return
        known = self._seconds.get(num_threads, seconds_per_token)
        self._seconds[num_threads] = known + SMOOTHING * (seconds_per_token - known)

    def choose(self, fewer: int, more: int) -> int:
        """The number of threads to compute the next block with."""
        if not self._is_known(more):
            return more
        if not self._is_known(fewer):
            return fewer
        if self._seconds[more] * GAIN <= self._seconds[fewer]:
            return more
        self._num_declined += 1
        if self._num_declined >= NUM_DECLINED:
            self._num_declined = 0
            self._num_measured[more] = 0  # the batches may be larger now
        return fewer

    def _is_known(self, num_threads: int) -> bool:
        return self._num_measured.get(num_threads, 0) >= NUM_TRIALS


def move_threads(cores: Collection[int]) -> None:
    """Put every thread of this process on these cores.

    A new thread starts on the cores of its creator. But OpenMP keeps its threads, and they stay on the cores
    where they were created until they are moved.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


class TrainerCores:
    """Moves the process to its current cores, with one thread per core."""

    def __init__(
        self,
        own: Sequence[int],
        *,
        rates: ThreadRates,
        poll: Callable[[], None],
        on_change: Callable[[tuple[int, ...]], None],
    ) -> None:
        self._own = tuple(own)
        self._offered = self._own
        self._in_use = self._own
        self._poll = poll
        """Called before every move; may call `offer`."""
        self._on_change = on_change
        self._rates = rates
        self._last_block: tuple[float, int] | None = None
        """Start time and number of threads of the current block."""

    def offer(self, cores: tuple[int, ...]) -> None:
        """Use these cores, which include the trainer's own, from the next move on if that is faster."""
        self._offered = cores

    def watch(self, model: Decoder) -> None:
        """Register moves between the blocks of the model, and between them and its head, forward and backward."""
        for layer in (*model.blocks, model.final_norm):
            layer.register_forward_pre_hook(self._before_forward)
            layer.register_forward_hook(self._after_forward)
        for block in model.blocks:
            block.register_forward_pre_hook(self._begin_block)
            block.register_forward_hook(self._end_block)

    def _before_forward(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.move()

    def _after_forward(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(self._before_backward)

    def _before_backward(self, _: Tensor) -> None:
        self.move()

    def _begin_block(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._last_block = time.perf_counter(), len(self._in_use)

    def _end_block(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert self._last_block is not None
        begin, num_threads = self._last_block
        if output.requires_grad:
            self._rates.measure(num_threads, (time.perf_counter() - begin) / output.shape[0])

    def move(self) -> None:
        """Switch to the offered cores unless they are in use already."""
        self._poll()
        cores = self._own if self._declines() else self._offered
        if cores == self._in_use:
            return
        self._in_use = cores
        move_threads(cores)
        torch.set_num_threads(len(cores))
        self._on_change(cores)

    def _declines(self) -> bool:
        fewer, more = len(self._own), len(self._offered)
        return more > fewer and self._rates.choose(fewer, more) == fewer
