"""A trainer with two threads: its sums must not depend on which thread comes first."""

from pathlib import Path

import pytest
from tiny_runs import Run, make_run

from freerun.events.batches import recorded_checksums

SYNCHRONOUS = ("--buffer.max_staleness", "0", "--train.num_threads", "2", "--train.num_steps", "8")

WIDE = {"hidden_size": 256, "intermediate_size": 512}
"""Large enough for its products to be divided between threads."""


@pytest.mark.slow
def test_a_synchronous_run_with_two_threads_has_the_same_bits_each_time(tmp_path: Path) -> None:
    checksums = []
    for name in ("first", "second", "third"):
        run = Run(make_run(tmp_path / name, **WIDE), *SYNCHRONOUS)
        assert run.wait(240) == 0, run.output
        with run.reader() as reader:
            checksums.append(recorded_checksums(reader))
    assert len(checksums[0]) == 9
    assert checksums[1:] == checksums[:1] * 2
