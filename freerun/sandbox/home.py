"""The environment of sandboxed programs: new namespaces, a root with only Python in it, unused uids.

    /  tmpfs, read-only
    ├─ <the standard library>     bound read-only, where it always was
    ├─ dev/null                   bound read-only: it can be written to, but its mode and times cannot be changed
    └─ box                        an empty directory; each program mounts its own tmpfs there

No /proc, no other device, no /tmp, no home, no active network interface. As root the server keeps its uid and
each program gets another one. A normal user gets a user namespace with one uid, and so does a root without
spare uids: a container with remapped uids often has 65,536 of them, sometimes only its own.
"""

import os
import sysconfig

from freerun.sandbox import syscalls
from freerun.sandbox.syscalls import mount

STANDARD_LIBRARY = sysconfig.get_path("stdlib")
BOX = "/box"
_SCAFFOLD = "/tmp"  # any directory works as the mount point of the new root: only this process sees it
_READ_ONLY = syscalls.MS_RDONLY | syscalls.MS_NOSUID
FIRST_UID = 0x7000_0000
_MAX_PID = 1 << 22
_MIN_RANGE = 4096
"""A smaller range is not searched for unused uids."""


def leave_namespaces(*, has_uids: bool) -> None:
    """Enter new namespaces; the pid namespace applies from the next child on, which is process 1 there."""
    user, group = os.getuid(), os.getgid()
    if has_uids:
        syscalls.unshare(syscalls.ALL_BUT_USERS)
        return
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.ALL_BUT_USERS)
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def enter_empty_root() -> None:
    """Replace the root file system of this mount namespace."""
    # Opened first: the new mount may hide them, for example a virtual environment in /tmp.
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
    """Give this process a private empty directory that disappears with it."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    user, group = owner
    mount(
        "box",
        BOX,
        "tmpfs",
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC,
        f"size={num_bytes},nr_inodes={num_files},mode=700,uid={user},gid={group}",
    )


def first_uid() -> int:
    """The first of the two uids (and gids) for this process's children; 0 if there are none to give."""
    if os.getuid() != 0:
        return 0
    found = [_chosen_from(_read(f"/proc/self/{name}"), os.getpid()) for name in ("uid_map", "gid_map")]
    return found[0] if found[0] == found[1] else 0


def _chosen_from(id_map: str, pid: int) -> int:
    """Choose by the id map of a user namespace: lines of first id inside, first id outside, count."""
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, id_map.splitlines())]
    if any(first <= FIRST_UID and first + count >= FIRST_UID + 2 * _MAX_PID for first, count in ranges):
        return FIRST_UID + 2 * pid
    first, count = max(ranges, key=lambda found: found[1], default=(0, 0))
    if count < _MIN_RANGE:
        return 0
    # The upper half, where users are rare, except its end, where `nobody` (65534) is.
    num_pairs = count // 4 - 8
    return first + count // 2 + 2 * (pid % num_pairs)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
