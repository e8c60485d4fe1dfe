"""Errors of a machine that ran out of files, processes or threads: names the limit and how to raise it."""

import errno
import resource

NO_THREAD = "can't start new thread"
"""Python's message, the only way to recognise the error."""


def describe_shortage(error: BaseException) -> str:
    """Which limit was reached and how to raise it; empty for other errors."""
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
