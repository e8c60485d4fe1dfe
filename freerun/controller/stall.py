"""Waiting for rollouts, with a limit on the time without generation or grading progress."""

import asyncio
import contextlib
import math
from collections.abc import Callable

from freerun.controller.stages import RunContext
from freerun.errors import WorkerError
from freerun.processes.patience import awake_clock

LOOK_SECONDS = 1.0
REPLACE_SECONDS = 10.0
"""Time beyond `stall_seconds` in which the pool may replace a stuck engine before the run gives up."""


async def wait_for_rollouts(run: RunContext) -> None:
    """Wait for a group to finish; raise if no token and no grade arrives for `stall_seconds`."""
    seconds, stages = run.recipe.runtime.stall_seconds, run.stages

    def progress() -> tuple[int, int, int]:
        """A value that changes whenever something is generated or graded, or an engine is replaced."""
        num_tokens = sum(stats.num_tokens for stats in stages.generator.stats())
        return stages.grader.num_graded, num_tokens, stages.generator.num_ready

    # Clients of a live run may stay away indefinitely.
    patience = math.inf if run.recipe.online.is_on else seconds + REPLACE_SECONDS
    if not await wait_while_moving(run.training_wake, progress, stall_seconds=patience):
        missing = stages.generator.missing()
        raise WorkerError(
            f"nothing was generated or graded for {seconds:.0f} s; waiting for "
            f"{stages.buffer.waiting_for()}{f'; {missing}' if missing else ''}"
        )


async def wait_while_moving(wake: asyncio.Event, progress: Callable[[], object], *, stall_seconds: float) -> bool:
    """True when `wake` is set; False when `progress()` has not changed for `stall_seconds`."""
    clock = awake_clock()
    seen, since = progress(), clock.time()
    while clock.time() - since <= stall_seconds:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await wake.wait()
                return True
        before, seen = seen, progress()
        if seen != before:
            since = clock.time()
    return False
