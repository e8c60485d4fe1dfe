"""A side that serves: its server has the main thread; a second thread reports when it is up, and its memory.

from serving import report_when_up        # a script's own directory is on its path

report_when_up(port)
run_the_server(port)
"""

import os
import socket
import threading
import time

from asked import answer

POLL_SECONDS = 0.05


def report_when_up(port: int) -> None:
    threading.Thread(target=_report, args=(port,), daemon=True).start()


def _report(port: int) -> None:
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)):
                break
        except OSError:
            time.sleep(POLL_SECONDS)
    answer(lambda: {"resident_bytes": _resident_bytes()})
    os._exit(0)  # the bench has ended, and no server stops by itself


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
