"""Supervision: wait for work or fail when a worker is lost, clean up dead workers, close everything.

A `Supervisor` runs background tasks for its owner. The first failure is final: every later wait raises
it. The rollout pool, the trainer client, the grader pool, the agent pool and the controller each have one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from freerun.errors import ConfigError, WorkerError
from freerun.processes.link import Link, Mortal

R = TypeVar("R")
OnDeath = Callable[[str, str, bool], None]
"""Called for each worker that died, with its name, how it ended, and whether it is restarted."""

MAX_STARTS_IN_ROW = 3
CHECK_SECONDS = 1.0
EXIT_SECONDS = 5.0
"""How long a worker may take to exit once its connection is closed, and a killed one to disappear."""


class Supervisor:
    """Runs background tasks; the first failure, called the loss, fails every wait."""

    def __init__(self, *, on_loss: Callable[[BaseException], None] = lambda error: None) -> None:
        self._on_loss = on_loss
        self._tasks: set[asyncio.Task[None]] = set()
        self._loss: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as a task; an exception becomes the loss."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def check_often(self, check: Callable[[], None]) -> None:
        """Call `check` once a second; an exception becomes the loss."""
        self.start(_repeat(check))

    def lose(self, error: BaseException) -> None:
        """Make `error` the loss, which fails every wait, unless there is one already."""
        if not self._loss.done():
            self._loss.set_exception(error)
            self._loss.exception()  # mark it as retrieved, or asyncio complains at exit
            self._on_loss(error)

    async def wait_for_loss(self) -> None:
        """Wait for the loss and raise it; never returns."""
        await asyncio.shield(self._loss)

    @property
    def is_lost(self) -> bool:
        return self._loss.done()

    def raise_loss(self) -> None:
        """Raise the loss, if there is one."""
        if self._loss.done():
            self._loss.result()

    async def wait(self, future: asyncio.Future[Any]) -> None:
        """Return when `future` is done; raises if there is a loss."""
        await asyncio.wait({future, self._loss}, return_when=asyncio.FIRST_COMPLETED)

    async def watch(self, work: Awaitable[R]) -> R:
        """Return the result of `work`; if there is a loss, cancel `work` and raise."""
        task: asyncio.Future[R] = asyncio.ensure_future(work)
        try:
            await self.wait(task)
            self.raise_loss()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            elif not task.cancelled():
                task.exception()  # if both failed at once, mark this one as retrieved too

    async def close(self, links: Sequence[Link[Any]] = ()) -> None:
        """End all tasks and kill the workers; returns when all are gone."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for link in links:
            link.kill()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.wait(2 * EXIT_SECONDS) for link in links))

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.lose(error)


async def _repeat(check: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        check()


async def start_all(starts: Iterable[Awaitable[None]], close: Callable[[], Awaitable[None]]) -> None:
    """Start processes concurrently; if one fails, `close` them all and raise the first failure."""
    try:
        results = await asyncio.gather(*starts, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
    except BaseException:
        await close()
        raise


async def start_again(name: str, start: Callable[[], Awaitable[None]]) -> None:
    """Start the successor of a process that is gone; raises `WorkerError` after three failures."""
    for starts_left in reversed(range(MAX_STARTS_IN_ROW)):
        try:
            return await start()
        except (ConfigError, WorkerError, OSError) as error:  # OSError: no room for another process
            # What is refused now was accepted when the run began, so the user's module has changed since.
            if starts_left == 0 or isinstance(error, ConfigError):
                raise WorkerError(f"{name} could not be replaced: {error}") from error


async def end(worker: Mortal, *, is_closed: bool = True) -> str:
    """Make sure that a worker has ended; returns how it ended.

    A worker whose connection is closed may first end by itself and report its own exit status.
    """
    if is_closed:
        await worker.wait(EXIT_SECONDS)
    worker.kill()
    await worker.wait(EXIT_SECONDS)
    return worker.describe_end()


async def bury(link: Link[Any], on_death: OnDeath, refusal: Callable[[], str] = lambda: "") -> None:
    """End a worker that is gone and report its death, before a successor is started.

    `refusal` is called once the worker has ended. It returns the reason why there is to be no successor, if any:
    then this raises `WorkerError`.
    """
    how = await end(link)
    why = refusal()
    on_death(link.name, how, not why)
    if why:
        raise WorkerError(f"{why}: {how}")
