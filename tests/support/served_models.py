"""`freerun serve` as a user starts it."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import psutil
from tiny_runs import ROOT, are_gone


class Server:
    """A server process; its output goes to a file."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.output_path = directory / f"output-{time.monotonic_ns()}.txt"
        with self.output_path.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "freerun.cli.main", "serve", *arguments, "--address", "127.0.0.1:0"],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    def until(self, happened: Callable[[], bool], timeout_seconds: float = 240) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not happened():
            assert self.process.poll() is None, f"the server ended early:\n{self.output}"
            assert time.monotonic() < deadline, f"waited too long:\n{self.output}"
            time.sleep(0.05)

    def client(self) -> httpx2.Client:
        """A client of `/v1/...`, once the server is ready."""
        self.until(lambda: "Ctrl-C" in self.output)
        headers = {"authorization": f"Bearer {self.told('key')}"}
        return httpx2.Client(base_url=self.told("address"), headers=headers, timeout=60)

    def told(self, what: str) -> str:
        found = re.search(rf"^{what} +(.*)$", self.output, re.MULTILINE)
        assert found, self.output
        return found[1]

    def stop(self) -> int:
        """Ctrl-C; the exit status, when no process of it is left."""
        processes = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(60)
        assert are_gone(processes), "the server left processes behind"
        return status
