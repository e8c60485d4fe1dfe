"""Which uids the programs of root get: such as nobody else has, of those that this user namespace knows.

A machine knows 2^32 of them; a container of a normal user, or one with remapped uids, often 65,536, sometimes
only its own. There root can give its programs none, and is a user like any other.
"""

from __future__ import annotations

import os

FIRST_UID = 0x7000_0000
_MAX_PID = 1 << 22
_MIN_RANGE = 4096
"""A smaller one is not searched for uids that nobody has."""


def first_uid() -> int:
    """The first of the two that this process's children get, user and group; 0 if it can give none."""
    if os.getuid() != 0:
        return 0
    found = [_chosen_from(_read(f"/proc/self/{name}"), os.getpid()) for name in ("uid_map", "gid_map")]
    return found[0] if found[0] == found[1] else 0


def _chosen_from(id_map: str, pid: int) -> int:
    """By the map of a user namespace: lines of first id inside, first id outside, how many."""
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, id_map.splitlines())]
    if any(first <= FIRST_UID and first + count >= FIRST_UID + 2 * _MAX_PID for first, count in ranges):
        return FIRST_UID + 2 * pid
    first, count = max(ranges, key=lambda found: found[1], default=(0, 0))
    if count < _MIN_RANGE:
        return 0
    # The upper half, where users are rare; less its end, where nobody (65534) is.
    num_pairs = count // 4 - 8
    return first + count // 2 + 2 * (pid % num_pairs)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
