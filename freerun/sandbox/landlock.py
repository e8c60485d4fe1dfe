"""Landlock: permanently confines a process to the files below the directories it names.

The process also loses TCP (ABI 4), abstract sockets and signals to processes outside (ABI 6), and ptrace of them
(always). Landlock stops neither `socket` nor `chmod`: seccomp, the uid and the namespaces do.
"""

import ctypes
import os
import struct

from freerun.sandbox.syscalls import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_CHAR, _MAKE_DIR, _MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = (1 << bit for bit in range(6, 12))
_MAKE_SYM, _REFER, _TRUNCATE, _IOCTL_DEV = (1 << bit for bit in range(12, 16))

READ = _READ_FILE | _READ_DIR
USE_DEVICE = _READ_FILE | _WRITE_FILE
WRITE = (
    _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_FIFO | _MAKE_SYM | _REFER | _TRUNCATE
)
_NUM_RIGHTS_BY_ABI = (13, 14, 15, 15, 16)
_NET_BIND_AND_CONNECT = 3
_SCOPE_SOCKETS_AND_SIGNALS = 3


def abi_version() -> int:
    """The landlock ABI version of this kernel; raises `OSError` if there is no landlock."""
    return syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION, what="landlock_create_ruleset")


def ruleset_of(rights_by_path: dict[str, int]) -> int:
    """The file descriptor of a ruleset with only the given rights below the given paths."""
    abi = abi_version()
    handled = (1 << _NUM_RIGHTS_BY_ABI[min(abi, len(_NUM_RIGHTS_BY_ABI)) - 1]) - 1
    network = _NET_BIND_AND_CONNECT if abi >= 4 else 0
    scope = _SCOPE_SOCKETS_AND_SIGNALS if abi >= 6 else 0
    # An older kernel accepts the longer struct because the fields that it does not know are zero.
    attributes = struct.pack("=QQQ", handled, network, scope)
    ruleset = syscall(
        _CREATE_RULESET,
        ctypes.create_string_buffer(attributes, len(attributes)),
        len(attributes),
        0,
        what="landlock_create_ruleset",
    )
    for path, rights in rights_by_path.items():
        _allow(ruleset, path, rights & handled)
    return ruleset


def confine(ruleset: int) -> None:
    """Confine this process and all its future children; needs no_new_privs."""
    syscall(_RESTRICT_SELF, ruleset, 0, what="landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", rights, directory)
    syscall(
        _ADD_RULE,
        ruleset,
        _RULE_PATH_BENEATH,
        ctypes.create_string_buffer(rule, len(rule)),
        0,
        what=f"landlock_add_rule {path}",
    )
    os.close(directory)
