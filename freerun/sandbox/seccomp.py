"""Seccomp: the system calls a sandboxed Python may make; any other fails with EPERM.

The list is of allowed calls, so system calls that are added to the kernel later are refused. The filter is
classic BPF, assembled here: runs of consecutive numbers, in order.

    wrong architecture, x32          the process is killed: numbers mean other calls there
    clone                            only without new namespaces, and only own children (no CLONE_PARENT);
                                     a filter cannot read the flags of clone3: it fails with ENOSYS, and libc falls
                                     back to clone; no pidfd: its inode number counts the forks of the machine
    socketpair                       only local streams (asyncio needs one); there is no `socket`
    prlimit64                        only for the process itself
    flock, fcntl's locks             succeed and do nothing: sqlite and dbm work, and there is no lock on a file
                                     that other programs or the host can see
    mmap                             not both shared and anonymous: each such mapping advances the inode number of
                                     the next file in memory, and the program's output is one
    futex                            only private ones; others are keyed by a page of a file, also of the library
    fcntl, ioctl, madvise,           only the listed commands: no leases, write hints, notifications or owners of
    getsockopt                       signals, no eviction of cached pages, no socket cookies

A program must leave nothing behind that a later or concurrent one can read: docs/sandbox.md, "Memory".
"""

import ctypes
import errno
import itertools
import re
import struct

from freerun.sandbox.syscalls import syscall

_SECCOMP, _SET_MODE_FILTER, _GET_ACTION_AVAIL = 317, 1, 2
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_REFUSE, _TRY_AGAIN = _ERRNO | errno.EPERM, _ERRNO | errno.EAGAIN
_PRETEND = _ERRNO | 0
"""The call is not executed and returns 0."""
_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_CLONE, _CLONE3, _SOCKETPAIR, _PRLIMIT, _FCNTL, _FLOCK, _FUTEX, _MMAP = 56, 435, 53, 302, 72, 73, 202, 9
_ANY_NEW_NAMESPACE, _CLONE_PARENT, _CLONE_PIDFD = 0x7E020080, 0x8000, 0x1000
_FUTEX_PRIVATE = 128
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_SET_LOCK = (6, 7, 37, 38)
"""F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW."""
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF

# BPF instructions, and offsets in struct seccomp_data.
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_IF_EQUAL, _IF_GREATER, _IF_AT_LEAST = 0x15, 0x25, 0x35
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 24, 32, 40

_BY_ARGUMENT = {
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC
    _FCNTL: (_SECOND_ARGUMENT, (0, 1, 2, 3, 4, 5, 1030)),
    # ioctl: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, TCGETS2, FICLONE
    16: (_SECOND_ARGUMENT, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A, 0x40049409)),
    # madvise: NORMAL to DONTNEED, FREE, (DONT|DO)FORK, (NO)HUGEPAGE, (DONT|DO)DUMP, (WIPE|KEEP)ONFORK, POPULATE_*,
    # GUARD_*: advice about the process's own memory, not about pages of files
    28: (_THIRD_ARGUMENT, (0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19, 22, 23, 102, 103)),
    # getsockopt: SO_TYPE, SO_ERROR, SO_SNDBUF, SO_RCVBUF, SO_RCVTIMEO, SO_SNDTIMEO, SO_PROTOCOL, SO_DOMAIN
    55: (_THIRD_ARGUMENT, (3, 4, 7, 8, 20, 21, 38, 39)),
}
"""For each call, the argument that holds its command, and the allowed commands."""

_CALLS = """
    # descriptors
    read=0 write=1 close=3 poll=7 lseek=8 pread64=17 pwrite64=18 readv=19 writev=20 pipe=22
    select=23 dup=32 dup2=33 sendfile=40 epoll_create=213 epoll_wait=232 epoll_ctl=233
    pselect6=270 ppoll=271 epoll_pwait=281 eventfd2=290 epoll_create1=291 dup3=292 pipe2=293 preadv=295
    pwritev=296 copy_file_range=326 close_range=436
    # files
    open=2 stat=4 fstat=5 lstat=6 access=21 fsync=74 fdatasync=75 truncate=76 ftruncate=77
    getdents=78 getcwd=79 chdir=80 fchdir=81 rename=82 mkdir=83 rmdir=84 creat=85 link=86 unlink=87
    symlink=88 readlink=89 chmod=90 fchmod=91 umask=95 statfs=137 fstatfs=138 getdents64=217 openat=257
    mkdirat=258 newfstatat=262 unlinkat=263 renameat=264 linkat=265 symlinkat=266 readlinkat=267
    fchmodat=268 faccessat=269 utimensat=280 fallocate=285 renameat2=316 statx=332 faccessat2=439
    # memory
    mprotect=10 munmap=11 brk=12 mremap=25 msync=26
    # signals and timers
    rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 pause=34 nanosleep=35 getitimer=36 alarm=37
    setitimer=38 kill=62 rt_sigpending=127 rt_sigtimedwait=128 rt_sigsuspend=130 sigaltstack=131
    tkill=200 clock_nanosleep=230 tgkill=234
    # processes and threads
    sched_yield=24 getpid=39 fork=57 vfork=58 exit=60 wait4=61 setpgid=109 getppid=110 getpgrp=111
    setsid=112 getpgid=121 getsid=124 gettid=186 sched_getaffinity=204 set_tid_address=218
    exit_group=231 waitid=247 set_robust_list=273 get_robust_list=274 membarrier=324 rseq=334
    # itself and the machine
    uname=63 gettimeofday=96 getrlimit=97 getrusage=98 times=100 getuid=102 getgid=104
    geteuid=107 getegid=108 getresuid=118 getresgid=120 capget=125 sched_getscheduler=145
    sched_get_priority_min=147 time=201 clock_gettime=228 clock_getres=229 getrandom=318
    # streams between its own processes
    sendto=44 recvfrom=45 shutdown=48 getsockname=51 getpeername=52 setsockopt=54
"""
# Left out on purpose: socket, connect, bind; execve; ptrace and process_vm_*; mount, unshare, setns, chroot;
# memfd, shared memory and message queues; keys, bpf, perf, modules, io_uring, userfaultfd; prctl, every set*id,
# and sched_setaffinity (a program must not move to the engine's core); mincore and sysinfo (they show the page
# cache and the load of the machine).
ALLOWED = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", _CALLS)}
_REACHING_OUT = ["kill", "tkill", "tgkill", "chmod", "fchmod", "fchmodat", "utimensat", "truncate"]
"""Calls that reach outside processes and files in spite of landlock and a normal user's uid."""


def check_available() -> None:
    """Raise `OSError` if filters cannot be installed."""
    action = ctypes.create_string_buffer(struct.pack("=I", _ERRNO), 4)
    syscall(_SECCOMP, _GET_ACTION_AVAIL, 0, action, what="seccomp")


def assemble(*, has_namespaces: bool) -> bytes:
    """Make the filter for `install`; the fork server does this once.

    Without namespaces a signal could reach any process of the same uid, and a change of mode or time any of its
    files: these calls are refused. Locks are refused too: the program has no files.
    """
    lock = _PRETEND if has_namespaces else _REFUSE
    numbers = [n for name, n in ALLOWED.items() if has_namespaces or name not in _REACHING_OUT]
    program = [
        _instruction(_LOAD, _ARCH),
        _instruction(_IF_EQUAL, _ARCH_X86_64, 1, 0),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER),
        _instruction(_IF_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, _KILL_PROCESS),
        *_rule(_CLONE3, _instruction(_RETURN, _ERRNO | errno.ENOSYS)),
        *_rule(
            _CLONE,
            _instruction(_LOAD, _FIRST_ARGUMENT),
            _instruction(_AND, _ANY_NEW_NAMESPACE | _CLONE_PARENT | _CLONE_PIDFD),
            *_allow_if(0),
        ),
        *_rule(
            _SOCKETPAIR,
            _instruction(_LOAD, _FIRST_ARGUMENT),
            _instruction(_IF_EQUAL, _AF_UNIX, 1, 0),
            _instruction(_RETURN, _REFUSE),
            _instruction(_LOAD, _SECOND_ARGUMENT),
            _instruction(_AND, _SOCK_TYPE_MASK),
            *_allow_if(_SOCK_STREAM),
        ),
        *_rule(_PRLIMIT, _instruction(_LOAD, _FIRST_ARGUMENT), *_allow_if(0)),
        *_rule(_FLOCK, _instruction(_RETURN, lock)),
        *_rule(
            _FUTEX,
            _instruction(_LOAD, _SECOND_ARGUMENT),
            _instruction(_AND, _FUTEX_PRIVATE),
            # pthread_join waits on a futex that is not private, and tries again.
            *_allow_if(_FUTEX_PRIVATE, otherwise=_TRY_AGAIN),
        ),
        *_rule(
            _MMAP,
            _instruction(_LOAD, _FOURTH_ARGUMENT),
            _instruction(_AND, _MAP_SHARED | _MAP_ANONYMOUS),
            *_by_value({_MAP_SHARED | _MAP_ANONYMOUS: _REFUSE}, otherwise=_ALLOW),
        ),
    ]
    for number, (argument, commands) in _BY_ARGUMENT.items():
        answers = dict.fromkeys(commands, _ALLOW) | (dict.fromkeys(_SET_LOCK, lock) if number == _FCNTL else {})
        program += _rule(number, _instruction(_LOAD, argument), *_by_value(answers))
    for first, last in _runs(numbers):
        program += [
            _instruction(_IF_AT_LEAST, first, 0, 2),
            _instruction(_IF_GREATER, last, 1, 0),
            _instruction(_RETURN, _ALLOW),
        ]
    return b"".join([*program, _instruction(_RETURN, _REFUSE)])


def install(program: bytes) -> None:
    """Put this process and all its future children under the filter; needs no_new_privs."""
    body = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(body))
    syscall(_SECCOMP, _SET_MODE_FILTER, 0, ctypes.create_string_buffer(header, len(header)), what="seccomp filter")


def _rule(number: int, *body: bytes) -> list[bytes]:
    """Instructions for one system call; the body must return."""
    return [_instruction(_IF_EQUAL, number, 0, len(body)), *body]


def _allow_if(value: int, *, otherwise: int = _REFUSE) -> list[bytes]:
    """Allow and return if the loaded value is `value`."""
    return _by_value({value: _ALLOW}, otherwise=otherwise)


def _by_value(answers: dict[int, int], *, otherwise: int = _REFUSE) -> list[bytes]:
    """Return the answer for the loaded value."""
    pairs = [(_instruction(_IF_EQUAL, value, 0, 1), _instruction(_RETURN, a)) for value, a in answers.items()]
    return [*itertools.chain.from_iterable(pairs), _instruction(_RETURN, otherwise)]


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers."""
    runs = itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    return [(members[0][1], members[-1][1]) for _, run in runs if (members := list(run))]
