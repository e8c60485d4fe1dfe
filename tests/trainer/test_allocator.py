"""Memory that training frees stays with the process."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from freerun.trainer.allocator import keep_freed_memory

def num_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if sys.argv[1] == "keep":
    keep_freed_memory()
weight = torch.randn(512, 512, requires_grad=True)
for step in range(8):
    if step == 2:
        before = num_faults()
    x = torch.ones(20_000, 512)
    for _ in range(4):
        x = torch.relu(x @ weight)
    x.sum().backward()
print(num_faults() - before)
"""


def num_faults(how: str) -> int:
    """Page faults of six steps of backpropagation, once two others have come and gone."""
    shown = subprocess.run([sys.executable, "-c", SCRIPT, how], check=True, capture_output=True, text=True).stdout
    return int(shown)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_a_step_takes_the_pages_that_the_one_before_has_freed() -> None:
    assert num_faults("keep") < num_faults("give back") / 4
