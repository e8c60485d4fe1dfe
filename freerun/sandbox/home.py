"""Where sandboxed programs live: the fork server's own namespaces, and a root with nothing in it but Python.

    /  tmpfs, read-only
    ├─ <the standard library>     bound read-only, where it always was
    ├─ dev/null                   bound read-only: it can be written to, its mode and times cannot be changed
    └─ box                        an empty directory; each program mounts its own tmpfs there

No /proc, no other device, no /tmp, no home, no network interface that is up. As root the server keeps its uid,
and each program gets another one; anybody else, and a root who has none to give (`uids.py`), gets a user
namespace in which there is nobody but himself.
"""

from __future__ import annotations

import os
import sysconfig

from freerun.sandbox import syscalls
from freerun.sandbox.syscalls import mount

STANDARD_LIBRARY = sysconfig.get_path("stdlib")
BOX = "/box"
_SCAFFOLD = "/tmp"  # any directory will do to mount the new root on: it is seen by this process alone
_READ_ONLY = syscalls.MS_RDONLY | syscalls.MS_NOSUID


def leave_namespaces(*, has_uids: bool) -> None:
    """Enter new ones; those of pids hold for the next child, which is process 1 there."""
    user, group = os.getuid(), os.getgid()
    others = (
        syscalls.CLONE_NEWNS
        | syscalls.CLONE_NEWPID
        | syscalls.CLONE_NEWNET
        | syscalls.CLONE_NEWIPC
        | syscalls.CLONE_NEWUTS
    )
    if has_uids:
        syscalls.unshare(others)
        return
    syscalls.unshare(syscalls.CLONE_NEWUSER | others)
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def enter_empty_root() -> None:
    """Replace the root file system of this mount namespace."""
    # Opened first, because the scaffold may hide them: a virtual environment in /tmp, say.
    library, null = (os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (STANDARD_LIBRARY, os.devnull))
    mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    mount("sandbox", _SCAFFOLD, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=64k,mode=755")
    for directory in (STANDARD_LIBRARY, BOX, os.path.dirname(os.devnull)):
        os.makedirs(_SCAFFOLD + directory)
    os.mknod(_SCAFFOLD + os.devnull)
    _bind_read_only(null, _SCAFFOLD + os.devnull, flags=0)
    _bind_read_only(library, _SCAFFOLD + STANDARD_LIBRARY, flags=syscalls.MS_NODEV)
    os.close(library)
    os.close(null)
    syscalls.enter_root(_SCAFFOLD)
    mount("none", "/", flags=syscalls.MS_REMOUNT | syscalls.MS_NODEV | _READ_ONLY)


def _bind_read_only(source: int, target: str, *, flags: int) -> None:
    mount(f"/proc/self/fd/{source}", target, flags=syscalls.MS_BIND)
    # In a user namespace the flags of the original mount are locked and must be repeated.
    present = os.fstatvfs(source).f_flag
    locked = present & (syscalls.MS_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    if present & os.ST_RELATIME:
        locked |= syscalls.MS_RELATIME
    mount("none", target, flags=syscalls.MS_REMOUNT | syscalls.MS_BIND | _READ_ONLY | flags | locked)


def mount_box(*, owner: tuple[int, int], num_bytes: int, num_files: int) -> None:
    """Give this process alone an empty directory that vanishes with it."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    user, group = owner
    mount(
        "box",
        BOX,
        "tmpfs",
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC,
        f"size={num_bytes},nr_inodes={num_files},mode=700,uid={user},gid={group}",
    )
