"""A program leaves nothing that another one could read: not in the kernel, in files, or in the server's memory.

A program that remembers across executions passes tests it cannot solve. It learns which of its answers was wrong,
because no call follows it, and the samples of a group are enough executions to try the others. Run as root and, by
tests/sandbox/test_sandbox_as_normal_user.py, as a user without privileges.
"""

import ast
import fcntl
import os
import threading
from collections.abc import Iterator

import pytest
from sandboxes import RIGHT, TESTS, left_behind, verdict_on

from freerun.sandbox.limits import Limits
from freerun.sandbox.sandbox import Sandbox

TOOLS = """
import ctypes, errno, fcntl, os, resource, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
LIBRARY, NULL = os.open(os.__file__, os.O_RDONLY), os.open(os.devnull, os.O_RDWR)
SHARED = (0, NULL, LIBRARY)
THIS = os.path.join(os.path.dirname(os.__file__), 'this.py')
libc.mmap.restype = ctypes.c_void_p
address = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, LIBRARY, ctypes.c_long(0))
word = ctypes.c_uint32.from_address(address).value
def lock_of(kind, start=0, length=1):
    return struct.pack("hhqqi4x", kind, 0, start, length, 0)
def call(*arguments):
    result = libc.syscall(*map(ctypes.c_long, arguments))
    return errno.errorcode.get(ctypes.get_errno(), ctypes.get_errno()) if result < 0 else result
def tried(action):
    try:
        return action()
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)
def frames():
    frame, found = sys._getframe(), []
    while frame is not None:
        found.append(sorted((name, repr(value)) for name, value in frame.f_locals.items()
            if name not in ("frame", "found", "self", "server", "control") and " at 0x" not in repr(value)
            and frame.f_code.co_filename != "<program>"))
        frame = frame.f_back
    return found
"""

WAYS = {
    "flags of standard input": (
        "[fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK) for fd in (0, NULL)]",
        "[fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (0, NULL)]",
    ),
    "a lock on an open file": (
        "[tried(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)) for fd in SHARED]",
        "[tried(lambda: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)) for fd in SHARED]",
    ),
    "record locks of an open file": (
        "[tried(lambda: fcntl.fcntl(fd, 37, lock_of(kind))) for fd in SHARED for kind in (0, 1)]",
        "[tried(lambda: fcntl.fcntl(fd, 36, lock_of(1))) for fd in SHARED]",
    ),
    "record locks of a process": (
        "[tried(lambda: fcntl.fcntl(fd, 6, lock_of(kind))) for fd in SHARED for kind in (0, 1)]",
        "[tried(lambda: fcntl.fcntl(fd, 5, lock_of(1))) for fd in SHARED]",
    ),
    "a lease": ("tried(lambda: fcntl.fcntl(LIBRARY, 1024, 0))", "tried(lambda: fcntl.fcntl(LIBRARY, 1025))"),
    "a write hint": (
        "[tried(lambda: fcntl.fcntl(fd, how, struct.pack('Q', 3))) for fd in SHARED for how in (1036, 1038)]",
        "[tried(lambda: fcntl.fcntl(fd, how, bytes(8))) for fd in SHARED for how in (1035, 1037)]",
    ),
    "a watched directory": (
        "tried(lambda: fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), 1026, 0x80000001))",
        "tried(lambda: fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), 1026, 0x80000001))",
    ),
    "modes and times": (
        "[tried(lambda: os.chmod(path, 0o640)) for path in (0, os.devnull, '/', os.__file__, '/dev', '/box/..')]\n"
        "[tried(lambda: os.utime(path, (7, 7))) for path in (0, os.devnull, '/', os.__file__, '/dev', '/box/..')]",
        "[(s.st_mode, s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns, s.st_size)\n"
        " for s in map(os.stat, (0, os.devnull, '/', os.__file__, '/dev'))]",
    ),
    "when a file was last read": ("open(THIS).read()", "os.stat(THIS).st_atime_ns"),
    "files": ("open('note', 'w').write('for later'); os.mkdir('d')", "os.listdir()"),
    "keys": ("call(248, 0, 0, 0, 0, -4)\ncall(250, 1, 0)", "[call(250, 0, -4, 1), call(249, 0, 0, 0, 0)]"),
    "shared memory, semaphores and queues of System V": (
        "[call(number, 4711, 4096, 0o1666) for number in (29, 64)]\ncall(68, 4711, 0o1666)",
        "[call(29, 4711, 4096, 0), call(64, 4711, 1, 0), call(68, 4711, 0)]",
    ),
    "a POSIX queue": ("call(240, address, 0o102, 0o666, 0)", "call(240, address, 0, 0, 0)"),
    "the name of the machine": ("call(170, address, 4)", "os.uname()[1]"),
    "limits, mask and priority": (
        "os.umask(0)\nresource.setrlimit(resource.RLIMIT_NOFILE, (9, 9))\n"
        "call(141, 0, 0, 5)\ncall(157, 29, 12345)\ncall(144, 0, 3, address)",
        "[os.umask(0), resource.getrlimit(resource.RLIMIT_NOFILE), call(140, 0, 0), os.sched_getscheduler(0)]",
    ),
    "how it ended": ("", "frames()"),
    "the count of sockets": ("", "tried(lambda: socket.socketpair()[0].getsockopt(1, 57, 8))"),
    "a sleeper at a page of the library": (
        "pid = os.fork()\nif pid == 0: call(202, address, 0, word, 0)",
        "call(202, address, 1, 1)",
    ),
    "the load of the machine": ("", "call(99, address)"),
    "cached pages": ("", "call(27, address, 4096, address)"),
}
LEAVE = TOOLS + "\n".join(leave for leave, _ in WAYS.values())
LOOK = TOOLS + "print({" + ", ".join(f"{name!r}: {look}" for name, (_, look) in WAYS.items()) + "})"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(Limits(seconds=20))
    sandbox.start()
    yield sandbox
    sandbox.close()


def seen_by(sandbox: Sandbox) -> dict[str, object]:
    """What a program sees in all these places."""
    ran = sandbox.run(LOOK)
    assert ran.status == 0, ran.output
    seen: dict[str, object] = ast.literal_eval(ran.output)
    return seen


@pytest.mark.parametrize("name", WAYS)
def test_a_program_leaves_nothing_for_a_later_one(sandbox: Sandbox, name: str) -> None:
    leave, look = WAYS[name]
    before = sandbox.run(TOOLS + f"print({look})")
    for status in (77, 78):
        assert sandbox.run(TOOLS + leave + f"\nos._exit({status})").status == status
        assert sandbox.run(TOOLS + f"print({look})") == before
    assert before.status == 0, before.output


@pytest.mark.slow
def test_a_program_leaves_nothing_for_one_that_runs_at_the_same_time(sandbox: Sandbox) -> None:
    before = seen_by(sandbox)
    holds = Sandbox(Limits(seconds=4))
    holds.start()
    holder = threading.Thread(target=holds.run, args=[LEAVE + "\ntime.sleep(1000)"])
    holder.start()
    num_looks = 0
    while holder.is_alive():
        assert seen_by(sandbox) == before
        num_looks += 1
    holds.close()
    assert num_looks > 1


def test_what_others_do_with_dev_null_is_not_held_up(sandbox: Sandbox) -> None:
    assert sandbox.run(LEAVE).status == 0
    null = os.open(os.devnull, os.O_RDWR)
    fcntl.flock(null, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(null, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(null)
    assert left_behind(sandbox) == []


NUM_MAPPINGS = 20_000
MAPS = f"""
import mmap
for _ in range({NUM_MAPPINGS}):
    try:
        mmap.mmap(-1, 4096).close()
    except PermissionError:
        pass
"""
OWN_MAPPINGS = """
import mmap
with open("page", "w+b") as file:
    file.truncate(4096)
    mmap.mmap(file.fileno(), 4096)[:2] = b"ok"
    print(file.read(2), len(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE)))
"""


def test_a_program_cannot_advance_the_inode_numbers_of_files_in_memory(sandbox: Sandbox) -> None:
    look = "import os\nprint(os.fstat(1).st_ino)"
    before = int(sandbox.run(look).output)
    assert sandbox.run(MAPS).status == 0
    assert int(sandbox.run(look).output) - before < NUM_MAPPINGS
    assert sandbox.run(OWN_MAPPINGS).output == "b'ok' 4096\n"


REMEMBERS = """
import fcntl, os, struct, sys
def lock_of(kind, start):
    return struct.pack("hhqqi4x", kind, 0, 1000 + start, 1, 0)
def is_set(number):
    try:
        return struct.unpack("hhqqi4x", fcntl.fcntl(other, 36, lock_of(1, number)))[0] != 2
    except OSError:
        return False
def set_(number):
    try:
        fcntl.fcntl(0, 37, lock_of(1, number))
    except OSError:
        pass
other = os.open(os.devnull, os.O_RDWR)
num_calls = 0
def is_prime(n):
    global num_calls
    # Bit 2i: a call i was reached; bit 2i + 1: it was the last one, so the answer was wrong.
    number, num_calls = num_calls, num_calls + 1
    if is_set(2 * number) and not is_set(2 * number + 2):
        set_(2 * number + 1)
    set_(2 * number)
    return is_set(2 * number + 1)
"""


def test_a_program_that_guesses_does_not_learn_from_one_execution_to_the_next(sandbox: Sandbox) -> None:
    tests = "".join(f"assert is_prime({n}) == {n in (2, 3, 5, 7)}\n" for n in range(8))
    reasons = {verdict_on(sandbox, REMEMBERS, tests).reason for _ in range(12)}
    assert reasons == {"tests, line 3: AssertionError: "}
    assert verdict_on(sandbox, RIGHT, TESTS).passed
