"""Whose uid a program has: one that nobody else has, or in a container with a single uid that of its user."""

import subprocess
import sys

from freerun.sandbox.home import FIRST_UID, _chosen_from

IN_SMALL_CONTAINER = """
import os
from freerun.sandbox import syscalls
from freerun.sandbox.sandbox import Examination, Sandbox
user, group = os.getuid(), os.getgid()
syscalls.unshare(syscalls.CLONE_NEWUSER)
for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(content)
sandbox = Sandbox()
print(os.getuid())
print(sandbox.examine("def f(x): return x", Examination("assert f(3) == 3", ["f"])).passed)
print(sandbox.run("try: open('/etc/passwd')\\nexcept OSError as error: print(error.strerror)").output, end="")
print(sandbox.run(CHANGES_NULL).output)
sandbox.close()
"""

CHANGES_NULL = """
import os
found = os.stat(os.devnull)
for change in (
    lambda: os.chmod(os.devnull, found.st_mode & 0o777),
    lambda: os.fchmod(os.open(os.devnull, os.O_RDWR), found.st_mode & 0o777),
    lambda: os.utime(os.devnull, ns=(found.st_atime_ns, found.st_mtime_ns)),
    lambda: os.utime(0, ns=(found.st_atime_ns, found.st_mtime_ns)),
):
    try:
        change()
        print("changed")
    except OSError as error:
        print(error.strerror)
os.write(os.open(os.devnull, os.O_WRONLY), b"x")
"""


def test_root_of_a_container_with_one_uid_is_a_user_like_any_other() -> None:
    source = f"CHANGES_NULL = {CHANGES_NULL!r}\n{IN_SMALL_CONTAINER}"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert ran.stdout.split("\n")[:3] == ["0", "True", "No such file or directory"], ran.stderr
    assert ran.stdout.split("\n")[3:-2] == ["Read-only file system"] * 4


def test_programs_of_root_get_uids_that_exist_and_that_nobody_has() -> None:
    assert _chosen_from("0 0 4294967295\n", pid=7) == FIRST_UID + 14
    rootless = "0 1000 1\n1 100000 65536\n"
    assert {_chosen_from(rootless, pid) for pid in (0, 1 << 14)} <= set(range(1 << 15, 65534))
    assert all(1 << 15 <= _chosen_from(rootless, pid) < 65533 for pid in range(1 << 15))
    assert _chosen_from("0 1000 1\n", pid=7) == 0
