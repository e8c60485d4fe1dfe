"""Runs work that needs an event loop, from any thread.

If a loop already runs, as in a notebook, the work gets a thread with its own loop: processes die with the
thread that started them (`processes/worker_process.py`), and this thread lives as long as they do. Signals
reach only the main thread, which waits: it forwards them to the session through the stop switch.
"""

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from freerun.session.attachments import StopSwitch
from freerun.session.lifetime import STOP_SIGNALS

T = TypeVar("T")


def run_anywhere(work: Callable[[], T], stop: StopSwitch) -> T:
    """Run work that needs an event loop; in this thread unless a loop already runs in it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _signals():
            return work()
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the edge of a thread: raised in the other
            done.set_exception(error)

    with _signals(stop):
        thread = threading.Thread(target=run, name="freerun session")
        thread.start()
        thread.join()
    return done.result()


@contextlib.contextmanager
def _signals(stop: StopSwitch | None = None) -> Iterator[None]:
    """Signals press the stop switch, or are handled by the session; the caller's handlers are restored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        for number, handler in before.items():
            if stop is not None and handler is not signal.SIG_IGN:
                signal.signal(number, lambda *_: stop.press())
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
