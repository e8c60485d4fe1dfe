"""Cores of a machine: never claimed by two, and free again when a claim is released or its process ends."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freerun.processes.core_claims import claim_cores

HOLD = """
import sys
from pathlib import Path
from freerun.processes.core_claims import claim_cores
print(claim_cores({0, 1, 2}, 2, directory=Path(sys.argv[1])).cores, flush=True)
sys.stdin.read()
"""


def test_claims_get_cores_of_their_own_until_they_are_released(tmp_path: Path) -> None:
    first = claim_cores({0, 1, 2, 3}, 2, directory=tmp_path)
    second = claim_cores({0, 1, 2, 3}, 2, directory=tmp_path)
    assert (first.cores, second.cores) == ((0, 1), (2, 3))
    first.release()
    first.release()
    assert claim_cores({1, 2, 3}, 1, directory=tmp_path).cores == (1,)


def test_a_claim_that_cannot_be_met_in_full_takes_nothing(tmp_path: Path) -> None:
    held = claim_cores({0, 1, 2}, 2, directory=tmp_path)
    assert claim_cores({0, 1, 2}, 2, directory=tmp_path).cores == ()
    assert claim_cores({0, 1, 2}, 1, directory=tmp_path).cores == (2,)
    held.release()


def test_the_cores_of_a_killed_process_are_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "(0, 1)"
        assert claim_cores({0, 1}, 1, directory=tmp_path).cores == ()
        other.kill()
        other.wait()
    assert claim_cores({0, 1}, 2, directory=tmp_path).cores == (0, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans())))
def test_no_core_is_ever_claimed_twice(tmp_path: Path, history: list[tuple[int, int, bool]]) -> None:
    held: dict[int, Any] = {}
    for worker, num_cores, is_leaving in history:
        if worker in held:
            held.pop(worker).release()
        if not is_leaving:
            held[worker] = claim_cores(range(6), num_cores, directory=tmp_path)
        cores = [core for claim in held.values() for core in claim.cores]
        assert len(cores) == len(set(cores))
    for claim in held.values():
        claim.release()
