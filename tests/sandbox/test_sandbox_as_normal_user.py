"""All checks of the sandbox once more, by a user without any privilege: root must not be what makes them pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHECKS = [
    "test_sandbox.py",
    "test_sandbox_escapes.py",
    "test_sandbox_memory.py",
    "test_sandbox_stand_ins.py",
    "test_sandbox_uids.py",
    "test_code_cheats.py",
]


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0, reason="the tests run as a normal user already; only root can become another"
)
def test_the_sandbox_holds_for_a_normal_user() -> None:
    files = [str(HERE / name) for name in CHECKS]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "as_normal_user.py"), *command],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, f"as nobody the checks fail:\n{ran.stdout[-6000:]}\n{ran.stderr[-2000:]}"
    assert "passed" in ran.stdout
