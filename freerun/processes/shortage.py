"""What a machine ran out of, in words: open files, processes and threads. The limits are the user's to raise."""

from __future__ import annotations

import errno
import resource

NO_THREAD = "can't start new thread"
"""All that Python says."""


def describe_shortage(error: BaseException) -> str:
    """Which limit was reached and how to raise it; empty if the error is of another kind."""
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.EMFILE, errno.ENFILE):
        return f"too many open files: the limit is {_limit(resource.RLIMIT_NOFILE)}; raise it with ulimit -n 1024"
    if code == errno.EAGAIN or (isinstance(error, RuntimeError) and NO_THREAD in str(error)):
        return (
            f"too many processes and threads: the limit of this user is {_limit(resource.RLIMIT_NPROC)}; raise it "
            "with ulimit -u 4096, or end other processes"
        )
    return ""


def _limit(kind: int) -> str:
    soft, _ = resource.getrlimit(kind)
    return "that of the whole machine" if soft == resource.RLIM_INFINITY else f"{soft:,}"
