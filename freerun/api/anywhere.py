"""Work that needs an event loop, wherever it is called.

Where a loop runs already, as in a notebook, the work gets a thread with its own loop: processes die with the
thread that started them (`processes/worker_process.py`), and this one lives as long as they do.
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
    """Do work that needs an event loop, in this thread if it has none that runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _same_signals_afterwards():
            return work()
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the edge of a thread: raised in the other
            done.set_exception(error)

    thread = threading.Thread(target=run, name="freerun session")
    thread.start()
    while thread.is_alive():
        try:
            concurrent.futures.wait([done])
            thread.join()
        except KeyboardInterrupt:
            stop.press()
    return done.result()


@contextlib.contextmanager
def _same_signals_afterwards() -> Iterator[None]:
    """The session handles signals while it runs; the caller's own handlers are put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
