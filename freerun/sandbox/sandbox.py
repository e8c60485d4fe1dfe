"""The caller's side of the sandbox: starts the fork server, passes it file descriptors, reads its reports.

The behaviour of a program is data (`Ran`, `Verdict`). A sandbox that does not work is a `SandboxError`, never a
wrong program; the next execution then starts a new server.
"""

import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from freerun.errors import SandboxError
from freerun.sandbox.limits import FILE_BYTES, Limits

FEATURES = {
    "namespaces": "a program could see which processes and files there are, not what is in them; "
    "it may not start processes, nor write",
    "landlock": "only the namespaces keep a program from files",
    "seccomp": "a program may make any system call: sockets, ptrace",
}
"""Kernel features that the sandbox needs, and what is lost without each of them."""
START_SECONDS = 30.0
GRACE_SECONDS = 10.0
"""How long the server may take to kill and clean up when a program's time is over."""
_SERVE = """
import sys
sys.path.insert(0, sys.argv[2])
from freerun.sandbox.server import main
main(int(sys.argv[1]))
"""
_PACKAGE_DIRECTORY = str(Path(__file__).resolve().parents[2])
# No site-packages, no bytecode files; a fixed hash seed, so the same program always gets the same verdict.
_FLAGS = ("-s", "-S", "-P", "-B")
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class Ran:
    """The result of a program that was run by itself."""

    status: int
    """Exit status; if negative, the signal that killed it."""
    output: str
    timed_out: bool


@dataclass(frozen=True)
class Examination:
    """Tests, and what they need to know about the program."""

    tests: str
    names: Sequence[str]
    """Names that the program must define; only these are taken from it."""
    prelude: str = ""
    """Code that runs before the tests, in their process."""
    modules: Sequence[str] = ()
    """Modules of the standard library that the tests use without importing them."""


@dataclass(frozen=True)
class Verdict:
    """Whether the tests ran to their end without an exception, and if not, why."""

    passed: bool
    reason: str
    output: str
    """What the program printed."""


class FeatureError(SandboxError):
    """The machine lacks a feature that the caller requires."""

    def __init__(self, feature: str, problem: str) -> None:
        super().__init__(
            f"the sandbox needs {feature}, which this machine refuses ({problem}); without it {FEATURES[feature]}"
        )
        self.feature = feature


class Sandbox:
    """A fork server, replaced if it dies; runs one execution at a time."""

    def __init__(self, limits: Limits = Limits(), *, without: Iterable[str] = ()) -> None:  # noqa: B008 - immutable
        self._limits = limits
        self._without = tuple(without)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Pid of the common ancestor of everything in the sandbox; None while there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the server; raises `SandboxError` if the machine lacks what it needs."""
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):  # system calls have other numbers elsewhere
            raise SandboxError(
                f"the sandbox needs Linux on x86_64, this is {sys.platform} on {platform.machine()}; "
                "use another machine"
            )
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_FLAGS, "-c", _SERVE, str(theirs.fileno()), _PACKAGE_DIRECTORY],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT,
                cwd="/",
            )
        self._control = ours
        ours.settimeout(START_SECONDS)
        try:
            self._check_missing(self._received("start"))
        except SandboxError:
            self.close()
            raise

    def _check_missing(self, missing: dict[str, str]) -> None:
        for name, problem in missing.items():
            if name not in self._without:
                raise FeatureError(name, problem)
        if {"namespaces", "landlock"} <= set(missing):
            raise SandboxError("the sandbox needs namespaces or landlock; this machine has neither")

    def run(self, program: str) -> Ran:
        """Run a program as a script."""
        with _anonymous_file(program) as source, _anonymous_file("") as output:
            report = self._execute([source, output])
            return Ran(report["statuses"][0], _text(output), report["timed_out"])

    def examine(self, program: str, examination: Examination) -> Verdict:
        """Run the tests of `examination` against the program, in separate processes.

        Tests that fail before they use the program raise `ValueError`: they would fail any program.
        """
        tests = json.dumps(asdict(examination))
        reads, writes = os.pipe()
        with os.fdopen(reads, "rb") as verdict, _anonymous_file(program) as source, _anonymous_file("") as output:
            with _anonymous_file(tests) as test_file:
                try:
                    report = self._execute([source, output, test_file, writes])
                finally:
                    os.close(writes)
            passed, reason = self._verdict(report, verdict.read())
            return Verdict(passed, reason, _text(output))

    def close(self) -> None:
        """End the server and everything in it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _verdict(self, report: dict[str, Any], said: bytes) -> tuple[bool, str]:
        program_status, tests_status = report["statuses"]
        if report["timed_out"]:
            return False, f"no verdict within {self._limits.seconds} s"
        if not said or tests_status != 0:
            return False, f"the tests ended without a verdict, with {_describe(tests_status)}"
        outcome, reason = json.loads(said)
        if outcome == "unusable":
            raise ValueError(f"the tests cannot be run with any program: {reason}")
        if reason and program_status not in (0, -signal.SIGKILL):
            reason = f"{reason} (the program: {_describe(program_status)})"
        return outcome == "right", reason

    def _execute(self, descriptors: list[int]) -> dict[str, Any]:
        if self._control is None or self._process is None or self._process.poll() is not None:
            self.start()
        assert self._control is not None
        self._control.settimeout(self._limits.seconds + GRACE_SECONDS)
        try:
            socket.send_fds(self._control, [json.dumps(self._limits).encode()], descriptors)
        except OSError as error:
            self.close()
            raise SandboxError(f"the fork server of the sandbox is gone: {error}") from error
        report = self._received("execution")
        if not report:
            raise SandboxError("the sandbox lost an execution: its process died; the reason may be in the log")
        self._received("end of execution")
        if report["problem"]:
            raise SandboxError(f"the sandbox could not lock up a program: {report['problem']}")
        return report

    def _received(self, what: str) -> dict[str, Any]:
        """The next message; an empty message means that an execution is over."""
        assert self._control is not None
        try:
            message = self._control.recv(1 << 16)
        except OSError as error:
            self.close()
            raise SandboxError(f"the fork server of the sandbox did not answer ({what}): {error}") from error
        if not message:
            self.close()
            raise SandboxError(f"the fork server of the sandbox died ({what}); its last words are in the log")
        reply: dict[str, Any] = json.loads(message)
        return reply


def _describe(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


@contextlib.contextmanager
def _anonymous_file(content: str) -> Any:
    """An unnamed file in memory; yields its file descriptor."""
    descriptor = os.memfd_create("sandbox")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content.encode(errors="surrogatepass"))
        yield descriptor
    finally:
        os.close(descriptor)


def _text(descriptor: int) -> str:
    return os.pread(descriptor, FILE_BYTES, 0).decode(errors="replace")
