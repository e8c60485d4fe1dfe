"""The processes that report a run: started by the run or by `freerun track`, watched, and ended with it.

The run waits for none of them. At its end they have limited time to send the rest, and are then killed. If the run
itself is killed, their guards notice and kill everything below them (`processes/guard.py`), since trackers start
processes too.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from freerun.processes.interpreter import python_command
from freerun.processes.worker_process import SECRETS, descendants, log_tail, open_log
from freerun.trackers.cursor import cursor_file
from freerun.trackers.reporting import ReportOptions

MODULE = "freerun.trackers.reporting"
LOOK_EVERY_SECONDS = 1.0
PATIENT_SECONDS = 1.0
"""How long the end of a run waits for reporters before it prints a message."""
MAX_FAILURE_LINE = 300


class ReporterProcess:
    """One running reporter."""

    def __init__(self, directory: Path, tracker: str, options: ReportOptions) -> None:
        self.tracker = tracker
        self.is_over = False
        """Whether its end has been reported."""
        self._directory = directory
        self.log = directory / "logs" / f"reporter-{cursor_file(directory, tracker).stem}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [str(directory), tracker, str(os.getpid()), msgspec.json.encode(options).decode()]
        with open_log(self.log) as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*python_command(MODULE), *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name not in SECRETS},
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def failure(self) -> str:
        """Why it ended, in one line; empty while it runs, and if it has sent everything."""
        status = self._process.poll()
        if not status:
            return ""
        last = log_tail(self.log, self._log_start).rstrip().rpartition("\n")[2]
        why = last[:MAX_FAILURE_LINE] if last else f"status {status}"
        return f"reporter {self.tracker} failed: {why}; {self._remedy()}"

    def ask_to_end(self) -> None:
        """Make it send what is in the store, and end."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> str:
        """Kill it with everything it started; returns a message if it was still busy."""
        self.ask_to_end()
        if not self.is_alive:
            return ""
        below = descendants(self._process.pid)
        for pid in (self._process.pid, *below):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self.is_over = True
        return f"reporter {self.tracker} was still busy and was killed; {self._remedy()}"

    def _remedy(self) -> str:
        return (
            f'the run is not affected; its log is {self.log}; "freerun track {self._directory}" reports it again'
        )


class Reporters:
    """All reporters of a run."""

    def __init__(self, directory: Path, trackers: Sequence[str], options: ReportOptions) -> None:
        self._looked = 0.0
        self.processes: list[ReporterProcess] = []
        try:
            for tracker in trackers:
                self.processes.append(ReporterProcess(directory, tracker, options))
        except BaseException:
            self.kill()
            raise

    @property
    def busy(self) -> list[str]:
        return [process.tracker for process in self.processes if process.is_alive]

    def failures(self) -> Iterator[str]:
        """A sentence for each reporter that has failed since the last call; returns immediately."""
        if (now := time.monotonic()) - self._looked >= LOOK_EVERY_SECONDS:
            self._looked = now
            yield from self._untold()

    def finish(self, say: Callable[[str], None], *, wait_seconds: float) -> None:
        """Let them send the rest, for a limited time; none is left afterwards."""
        begin = time.monotonic()
        try:
            for process in self.processes:
                process.ask_to_end()
            self._wait(begin + min(PATIENT_SECONDS, wait_seconds))
            if self.busy:
                say(f"waiting up to {wait_seconds:g} s for {', '.join(self.busy)} to report the rest")
                self._wait(begin + wait_seconds)
        finally:
            told = [process.kill() for process in self.processes]
        for text in (*filter(None, told), *self._untold()):
            say(text)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def _wait(self, deadline: float) -> None:
        while self.busy and time.monotonic() < deadline:
            time.sleep(0.02)

    def _untold(self) -> Iterator[str]:
        for process in self.processes:
            if not process.is_over and (text := process.failure):
                process.is_over = True
                yield text
