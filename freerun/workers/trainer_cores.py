"""The cores that a trainer computes on, which may change in the middle of a step.

A step of a large model takes a CPU minutes, one block a fraction of a second: so cores that are offered are taken
up, and cores that are asked back are left, at the next block of the forward or the backward pass. The head is one
piece from its forward to its backward.

More threads are not always faster: on tiny models OpenMP costs more than a second core brings. So the time that a
token takes in a block is measured for each number of threads, and an offer that did not make it shorter is
declined until it is time to try again. Only blocks that a backward pass follows are measured: those without
gradients keep less and are faster, whatever the threads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from freerun.model.decoder import Decoder

GAIN = 1.05
"""What more threads must bring."""
NUM_TRIALS = 30
"""Blocks measured with a number of threads before it is judged."""
NUM_DECLINED = 3000
"""Blocks after which a number of threads that was too slow is tried again."""
SMOOTHING = 0.1


class ThreadRates:
    """Seconds that a token takes in a block, by the number of threads; decides whether more are worth it."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._num_measured: dict[int, int] = {}
        self._num_declined = 0

    def measure(self, num_threads: int, seconds_per_token: float) -> None:
        is_cold = self._num_measured.get(num_threads, 0) == 0
        self._num_measured[num_threads] = self._num_measured.get(num_threads, 0) + 1
        if is_cold:  # its threads and pages were made meanwhile
            return
        known = self._seconds.get(num_threads, seconds_per_token)
        self._seconds[num_threads] = known + SMOOTHING * (seconds_per_token - known)

    def choose(self, fewer: int, more: int) -> int:
        """How many threads to compute the next block with."""
        if not self._is_known(more):
            return more
        if not self._is_known(fewer):
            return fewer
        if self._seconds[more] * GAIN <= self._seconds[fewer]:
            return more
        self._num_declined += 1
        if self._num_declined >= NUM_DECLINED:
            self._num_declined = 0
            self._num_measured[more] = 0  # the batches of now may be larger than those of then
        return fewer

    def _is_known(self, num_threads: int) -> bool:
        return self._num_measured.get(num_threads, 0) >= NUM_TRIALS


def move_threads(cores: Collection[int]) -> None:
    """Put every thread of this process on these cores.

    One that is made later begins where its maker is; but OpenMP keeps the threads of its teams, and those stay
    where they were made until they are moved.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


class TrainerCores:
    """Moves the process to the cores that it may use now, with as many threads."""

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
        """When the block under way began, and with how many threads."""

    def offer(self, cores: tuple[int, ...]) -> None:
        """Use these from the next move on, as far as that helps; they include the trainer's own."""
        self._offered = cores

    def watch(self, model: Decoder) -> None:
        """Move between the blocks of the model, and between them and its head, forward and backward."""
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
        """Take up what is offered, or leave what is no longer, if that is not what is in use already."""
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
