"""System calls that Python has no function for, through ctypes; each raises an `OSError` that names the call."""

import ctypes
import os

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
ALL_BUT_USERS = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 4096, 16384, 1 << 18, 1 << 21
_MNT_DETACH = 2
_PIVOT_ROOT = 155  # x86-64, like all numbers of the sandbox

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION_3 = 0x20080522
_SIGKILL = 9

_libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """The result of a libc call; raises the `OSError` of its errno."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None, what: str) -> int:
    """A raw system call, for calls that libc does not wrap."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(_libc.syscall(ctypes.c_long(number), *wide), what)


def unshare(flags: int) -> None:
    checked(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    checked(_libc.setns(descriptor, kind), f"setns({kind:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    checked(
        _libc.mount(
            os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
        ),
        f"mount {source} on {target}",
    )


def enter_root(directory: str) -> None:
    """Make `directory`, a mount point, the root of this mount namespace; the old root is removed from it."""
    os.chdir(directory)
    syscall(_PIVOT_ROOT, b".", b".", what=f"pivot_root {directory}")
    # The old root is now stacked on the new one (pivot_root(2), "pivot_root(".", ".")").
    checked(_libc.umount2(b".", _MNT_DETACH), "umount the old root")
    os.chdir("/")


def die_with_parent() -> None:
    checked(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def hide_memory() -> None:
    """Keep other processes of the same uid from reading this process's memory; disables core dumps."""
    checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def forbid_new_privileges() -> None:
    checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def drop_capabilities() -> None:
    """Drop the capabilities of all three sets, in any user namespace."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    checked(_libc.capset(header, nothing), "capset")
