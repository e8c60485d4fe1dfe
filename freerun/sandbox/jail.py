"""The restrictions that a child of the fork server applies, in this order, before it reads what it will run.

    descriptors    all but those it was given (`keep_only`; `lock` does the rest)
    directory      a new one: empty, bounded, gone when it ends
    uid            as root: one that is not in use; else the user's, without capabilities
    limits         address space, processes, size of files, open files, no core
    landlock       files, signals and ptrace
    seccomp        every system call that is not on the list; last, because the rest needs some of them

Each stops some attacks; none has to be perfect on its own.
"""

import math
import os
import resource
from typing import NamedTuple

from freerun.sandbox import home, landlock, limits, seccomp, syscalls
from freerun.sandbox.limits import Limits


class Walls(NamedTuple):
    """The kernel's features for the jail, known once the server has started."""

    has_namespaces: bool
    has_landlock: bool
    system_calls: bytes
    """The seccomp filter; empty without seccomp."""


class Cell(NamedTuple):
    """The identity of one child, and what it may keep."""

    uid: int
    """The uid of a child of root; 0 keeps the parent's uid."""
    descriptors: tuple[int | None, ...]
    """In the order in which the child finds them, from 0 on. None is /dev/null, opened by the child: flags and
    locks belong to what was opened."""
    has_directory: bool
    max_processes: int
    """Limit on all processes with its uid; for a normal user, program and tests count together."""


def keep_only(descriptors: tuple[int, ...]) -> None:
    """Renumber the given descriptors from 0 on and close all others."""
    # Via numbers above all of them, so that none is overwritten before it is moved.
    above = max(descriptors) + 1 + len(descriptors)
    for index, descriptor in enumerate(descriptors):
        os.dup2(descriptor, above + index, inheritable=False)
    for index in range(len(descriptors)):
        os.dup2(above + index, index, inheritable=index <= 2)
    os.closerange(len(descriptors), 1 << 16)


def lock(walls: Walls, cell: Cell, allowed: Limits) -> None:
    """Restrict this process permanently; raises `OSError` if one of the restrictions cannot be applied."""
    os.umask(0o077)
    os.setsid()  # kill(0, …) reaches the whole process group, across namespaces
    has_directory = cell.has_directory and walls.has_namespaces
    _move_in(cell, has_directory)
    # Before the change of uid: the new uid may not be able to open these paths.
    files = {home.STANDARD_LIBRARY: landlock.READ, os.devnull: landlock.USE_DEVICE}
    if has_directory:
        files[home.BOX] = landlock.READ | landlock.WRITE
    ruleset = landlock.ruleset_of(files) if walls.has_landlock else None
    if cell.uid:
        os.setgroups([])
        os.setresgid(cell.uid, cell.uid, cell.uid)
        os.setresuid(cell.uid, cell.uid, cell.uid)
    # Without a pid namespace, processes it starts could outlive it, so it may not start any.
    _limit(allowed, cell.max_processes if walls.has_namespaces else 0)
    syscalls.drop_capabilities()
    syscalls.forbid_new_privileges()
    syscalls.hide_memory()
    syscalls.die_with_parent()  # after the change of uid, which would undo it
    if ruleset is not None:
        landlock.confine(ruleset)
    if walls.system_calls:
        seccomp.install(walls.system_calls)


def _move_in(cell: Cell, has_directory: bool) -> None:
    if not has_directory:
        os.chdir("/")
        return
    owner = (cell.uid, cell.uid) if cell.uid else (os.getuid(), os.getgid())
    home.mount_box(owner=owner, num_bytes=limits.DIRECTORY_BYTES, num_files=limits.DIRECTORY_FILES)
    os.chdir(home.BOX)


def _limit(allowed: Limits, num_processes: int) -> None:
    for kind, amount in (
        (resource.RLIMIT_AS, allowed.memory_bytes),
        (resource.RLIMIT_NPROC, num_processes),
        (resource.RLIMIT_FSIZE, limits.FILE_BYTES),
        (resource.RLIMIT_NOFILE, limits.OPEN_FILES),
        (resource.RLIMIT_STACK, limits.STACK_BYTES),
        (resource.RLIMIT_CPU, math.ceil(allowed.seconds) + 1),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
        resource.setrlimit(kind, (amount, amount))
