"""Waiting with a limit on the time without progress."""

import asyncio
import contextlib
from collections.abc import Callable

from freerun.processes.patience import awake_clock

LOOK_SECONDS = 1.0


async def wait_while_moving(wake: asyncio.Event, progress: Callable[[], object], *, stall_seconds: float) -> bool:
    """True when `wake` is set; False when `progress()` has been the same for `stall_seconds`."""
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
