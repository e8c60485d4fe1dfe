"""Programs that try to get out of the sandbox, to take the machine's resources, or to leave something behind.

Each says how it was stopped, so that none passes because it failed for another reason. Run as root and, by
tests/sandbox/test_sandbox_as_normal_user.py, as a user without any privilege.
"""

from collections.abc import Iterator

import pytest
from sandboxes import RIGHT, TOKEN, WRONG, left_behind, verdict_on

from freerun.sandbox.limits import DIRECTORY_BYTES, FILE_BYTES, MAX_PROCESSES, Limits
from freerun.sandbox.sandbox import Sandbox

MEMORY_BYTES = 128 << 20

ATTEMPT = f"""
import ctypes, errno, os, resource, signal, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
TOKEN = {TOKEN!r}

def attempt(action, *arguments):
    try:
        result = action(*arguments)
    except OSError as error:
        print(errno.errorcode.get(error.errno, error.errno), flush=True)
    except BaseException as error:
        print(type(error).__name__, flush=True)
    else:
        print("ESCAPED", result, flush=True)

def syscall(number, *arguments):
    if libc.syscall(number, *map(ctypes.c_long, arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(Limits(seconds=20, memory_bytes=MEMORY_BYTES))
    sandbox.start()
    yield sandbox
    sandbox.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[Sandbox]:
    """For programs that never end."""
    sandbox = Sandbox(Limits(seconds=0.5))
    sandbox.start()
    yield sandbox
    sandbox.close()


ESCAPES = {
    "connect to the network": ("attempt(socket.create_connection, ('1.1.1.1', 80), 1)", "EPERM"),
    "send a datagram": ("attempt(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)", "EPERM"),
    "connect to a local service": ("attempt(socket.socket, socket.AF_UNIX, socket.SOCK_STREAM)", "EPERM"),
    "talk to the kernel's network": ("attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)", "EPERM"),
    "make a pair of datagram sockets": ("attempt(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)", "EPERM"),
    "read a file outside": ("attempt(open, '/etc/passwd')", "ENOENT"),
    "read the list of files outside": ("attempt(os.listdir, '/')", "EACCES"),
    "climb out through a directory's descriptor": (
        "attempt(lambda: os.open('../../etc/passwd', os.O_RDONLY, dir_fd=os.open('.', os.O_PATH)))",
        "ENOENT",
    ),
    "write to the temporary directory": ("attempt(open, f'/tmp/{TOKEN}', 'w')", "ENOENT"),
    "write beside its directory": ("attempt(open, f'/{TOKEN}', 'w')", "EROFS|EACCES"),
    "change the standard library": ("attempt(open, os.__file__, 'a')", "EROFS|EACCES"),
    "link the standard library into its directory": ("attempt(os.link, os.__file__, 'os.py')", "EXDEV|EACCES"),
    "read through a symbolic link": (
        "os.symlink('/etc/passwd', 'innocent')\nattempt(open, 'innocent')\nattempt(os.readlink, '/proc/self/exe')",
        "ENOENT ENOENT",
    ),
    "write through a symbolic link": ("os.symlink(f'/dev/shm/{TOKEN}', 'x')\nattempt(open, 'x', 'w')", "ENOENT"),
    "leave shared memory": (
        "from multiprocessing import shared_memory\n"
        "attempt(lambda: shared_memory.SharedMemory(TOKEN, create=True, size=4096))",
        "ENOSYS|ENOENT|EACCES|EPERM",
    ),
    "leave System V shared memory": ("attempt(syscall, 29, 4711, 4096, 0o1777)", "EPERM"),
    "make a file in memory only": ("attempt(os.memfd_create, 'hidden')", "EPERM"),
    "make a device": ("attempt(os.mknod, 'disk', 0o60600, os.makedev(254, 0))", "EPERM"),
    "read the memory of another process by /proc": ("attempt(open, '/proc/1/mem', 'rb')", "ENOENT"),
    "read the memory of another process by system call": ("attempt(syscall, 310, 1, 0, 0, 0, 0, 0)", "EPERM"),
    "write the memory of another process": ("attempt(syscall, 311, 1, 0, 0, 0, 0, 0)", "EPERM"),
    "trace another process": ("attempt(syscall, 101, 16, 1, 0, 0)", "EPERM"),
    "kill everybody": ("attempt(os.kill, -1, signal.SIGKILL)", "ESRCH"),
    "kill by process number": ("[attempt(os.kill, pid, signal.SIGKILL) for pid in (2, 300)]", "ESRCH ESRCH"),
    # Its own group is its own: as process 1 it survives its own signal, and the server never gets it.
    "kill its process group": ("print(os.getppid(), os.getpgrp())\nos.killpg(0, signal.SIGKILL)", "0 1"),
    "mount a file system": ("attempt(syscall, 165, 0, 0, 0, 0, 0)", "EPERM"),
    "unmount one": ("attempt(syscall, 166, 0, 2)", "EPERM"),
    "enter a user namespace": ("attempt(syscall, 272, 0x10000000)", "EPERM"),
    "clone into a user namespace": ("attempt(syscall, 56, 0x10000011, 0, 0, 0, 0)", "EPERM"),
    "make a sibling of itself": ("attempt(syscall, 56, 0x8011, 0, 0, 0, 0)", "EPERM"),
    "clone by the call that hides its flags": ("attempt(syscall, 435, 0, 88)", "ENOSYS"),
    "join another namespace": ("attempt(syscall, 308, 0, 0)", "EPERM"),
    "change its root": ("attempt(os.chroot, '.')", "EPERM"),
    "become root": ("attempt(os.setuid, 0)\nattempt(os.setgid, 0)\nprint(os.getuid() != 0)", "EPERM EPERM True"),
    "load a kernel module": ("attempt(syscall, 175, 0, 0, 0)\nattempt(syscall, 313, 0, 0, 0)", "EPERM EPERM"),
    "load a BPF program": ("attempt(syscall, 321, 0, 0, 0)", "EPERM"),
    "use io_uring, userfaultfd, perf, keys": (
        "[attempt(syscall, number, 0, 0, 0, 0, 0) for number in (425, 323, 298, 250)]",
        "EPERM EPERM EPERM EPERM",
    ),
    "use numbers of another architecture": ("attempt(syscall, 0x40000000 + 39)", "killed by 31"),
    "execute a program": ("attempt(os.execv, '/bin/sh', ['sh'])", "EPERM"),
    "execute its own file": (
        "open('x', 'w').write('#!/bin/sh')\nos.chmod('x', 0o4777)\nattempt(os.execv, './x', ['x'])",
        "EPERM",
    ),
    "start a program": ("attempt(subprocess.run, ['id'])", "EPERM|ENOENT|EACCES"),
    "raise its limits": (
        "attempt(resource.setrlimit, resource.RLIMIT_NPROC, (10**6, 10**6))\n"
        "attempt(resource.setrlimit, resource.RLIMIT_AS, (-1, -1))",
        "ValueError ValueError",
    ),
    "limit another process": ("[attempt(syscall, 302, pid, 7, 0, 0) for pid in (1, 2, 300)]", "EPERM EPERM EPERM"),
    "have another process signalled": (
        "import fcntl\nours, _ = socket.socketpair()\n"
        "[attempt(fcntl.fcntl, ours, command, 1) for command in (8, 10, 15)]\n"
        "[attempt(fcntl.ioctl, ours, command, 1) for command in (0x8901, 0x8902)]",
        "EPERM EPERM EPERM EPERM EPERM",
    ),
    "change the mode of what is outside": (
        "attempt(os.chmod, '/', 0o777)\nattempt(os.chmod, os.__file__, 0o777)\n"
        "attempt(lambda: os.fchmod(os.open(os.__file__, os.O_RDONLY), 0o777))",
        "EROFS EROFS EROFS",
    ),
    "change the times of what is outside": (
        "attempt(os.utime, '/', (0, 0))\nattempt(os.utime, os.__file__, (0, 0))",
        "EROFS EROFS",
    ),
    "move to another core": ("attempt(os.sched_setaffinity, 0, [0])", "EPERM"),
    "outlive its parent's death": ("attempt(syscall, 157, 1, 0)", "EPERM"),
    "take much memory": ("attempt(bytearray, 1 << 30)", "MemoryError"),
    "take much memory in pieces": (
        "pieces = []\ndef hog():\n    while True: pieces.append(bytearray(1 << 20))\n"
        "attempt(hog)\nprint(len(pieces) < 128)",
        "MemoryError True",
    ),
    "call the system at address 0": ("ctypes.string_at(0)", "killed by 11"),
    "write to all memory": ("ctypes.memset(id(None) & ~0xFFF, 65, 1 << 40)", "killed by 11"),
    "recurse without end": ("sys.setrecursionlimit(10**9)\nf = lambda x: list(map(f, [x]))\nf(1)", "killed by 11"),
}


@pytest.mark.parametrize(("code", "expected"), ESCAPES.values(), ids=ESCAPES)
def test_an_escape_is_stopped_in_the_way_it_should_be(sandbox: Sandbox, code: str, expected: str) -> None:
    ran = sandbox.run(ATTEMPT + code)
    printed = f"killed by {-ran.status}" if ran.status < 0 else " ".join(ran.output.split())
    assert printed in expected.split("|")
    assert not ran.timed_out
    assert not verdict_on(sandbox, ATTEMPT + code + "\n" + WRONG).passed
    assert left_behind(sandbox) == []


def test_what_is_not_an_escape_works_in_the_same_sandbox(sandbox: Sandbox) -> None:
    harmless = """
import asyncio, concurrent.futures, tempfile
open('note', 'w').write('text')
os.mkdir('directory'); os.rename('note', 'directory/note'); print(open('directory/note').read())
pid = os.fork()
if pid == 0: os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
with concurrent.futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, [-1, -2])))
async def hello(): await asyncio.sleep(0.001); return 'awaited'
print(asyncio.run(hello()))
import xml.dom.minidom, sqlite3, http
print('nowhere', file=open(os.devnull, 'w'))
print(sqlite3.connect('data.db').execute('select 1 + 1').fetchone())
"""
    ran = sandbox.run(ATTEMPT + harmless)
    assert ran.output.split("\n") == ["text", "7", "3", "awaited", "(2,)", ""]
    assert ran.status == 0
    assert verdict_on(sandbox, ATTEMPT + RIGHT).passed


def test_a_fork_bomb_is_bounded_and_gone(sandbox: Sandbox) -> None:
    bomb = """
def bomb():
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        print("forked", flush=True)
attempt(bomb)
"""
    ran = sandbox.run(ATTEMPT + bomb)
    assert ran.output.split()[-1] == "EAGAIN"
    assert 1 <= ran.output.count("forked") <= MAX_PROCESSES
    assert left_behind(sandbox) == []


def test_a_bomb_of_forks_that_fork_is_killed_when_its_time_is_over(hasty: Sandbox) -> None:
    ran = hasty.run(ATTEMPT + "while True:\n    try: os.fork()\n    except OSError: pass\n")
    assert ran.timed_out
    assert left_behind(hasty) == []


def test_threads_are_bounded(sandbox: Sandbox) -> None:
    bomb = "def bomb():\n    while True: threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n"
    assert sandbox.run(ATTEMPT + bomb + "attempt(bomb)\nos._exit(0)").output == "RuntimeError\n"


def test_a_daemon_does_not_survive(sandbox: Sandbox) -> None:
    daemon = """
for number in range(1, 32):
    if number not in (9, 17, 19): signal.signal(number, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        while True: time.sleep(1000)
    os._exit(0)
os.waitpid(pid, 0)
print("started")
"""
    ran = sandbox.run(ATTEMPT + daemon)
    assert (ran.output, ran.status) == ("started\n", 0)
    assert left_behind(sandbox) == []


def test_the_disk_cannot_be_filled(sandbox: Sandbox) -> None:
    fill = f"""
def big():
    with open('big', 'wb', buffering=0) as file:
        while True: file.write(bytes(1000))
attempt(big)
def many():
    for number in range(10**6):
        with open(str(number), 'wb') as file: file.write(bytes({FILE_BYTES}))
attempt(many)
print(sum(entry.stat().st_size for entry in os.scandir()) <= {DIRECTORY_BYTES})
def empty():
    for number in range(10**6): open(f'empty{{number}}', 'wb').close()
[os.unlink(name) for name in os.listdir()]
attempt(empty)
"""
    assert sandbox.run(ATTEMPT + fill).output.split() == ["EFBIG", "ENOSPC", "True", "ENOSPC"]
    assert left_behind(sandbox) == []


def test_output_is_bounded(sandbox: Sandbox, hasty: Sandbox) -> None:
    ran = sandbox.run(ATTEMPT + "while True: print('x' * 1000)")
    assert ran.status == 1
    assert len(ran.output) == FILE_BYTES
    stubborn = "while True:\n    try: print('x' * 1000)\n    except OSError: pass\n"
    ran = hasty.run(ATTEMPT + stubborn)
    assert ran.timed_out
    assert len(ran.output) <= FILE_BYTES
    assert not verdict_on(hasty, stubborn + RIGHT).passed


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(1000)",
        "while True: pass",
        "[signal.signal(n, signal.SIG_IGN) for n in range(1, 32) if n not in (9, 19)]\nwhile True: time.sleep(1)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "threading.Thread(target=time.sleep, args=(1000,)).start(); time.sleep(1000)",
        "10 ** 10 ** 10",
    ],
    ids=["sleeps", "busy", "ignores signals", "blocks signals", "has threads", "is stuck in C"],
)
def test_a_program_that_does_not_end_is_ended(hasty: Sandbox, code: str) -> None:
    assert verdict_on(hasty, ATTEMPT + code + "\n" + RIGHT).reason == "no verdict within 0.5 s"
    assert left_behind(hasty) == []


def test_a_program_inherits_nothing_but_its_streams(sandbox: Sandbox) -> None:
    look = """
for descriptor in range(1024):
    try: os.fstat(descriptor)
    except OSError: continue
    print(descriptor)
print(os.environ.keys() - {'LC_CTYPE', 'LANG', 'PYTHONUTF8', 'PYTHONHASHSEED'}, sys.stdin.read() == '')
"""
    assert sandbox.run(ATTEMPT + look).output.split("\n") == ["0", "1", "2", "set() True", ""]


def test_nothing_of_a_program_is_left_for_the_next(sandbox: Sandbox) -> None:
    poison = """
import builtins, json, random
open('note', 'w').write('for later')
sys.modules['json'] = sys.modules['math'] = None
builtins.len = lambda _: 42
json.loads = json.dumps = os.write = lambda *_: '[true, ""]'
sys.path.insert(0, '.')
"""
    sandbox.run(ATTEMPT + poison)
    assert not verdict_on(sandbox, ATTEMPT + poison + WRONG).passed
    ran = sandbox.run("import os, math, json; print(os.listdir('.'), len([1]), json.dumps([]))")
    assert ran.output == "[] 1 []\n"
    assert verdict_on(sandbox, RIGHT).passed
