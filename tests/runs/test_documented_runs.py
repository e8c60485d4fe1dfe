"""What real runs record is what docs/metrics.md says."""

from pathlib import Path

import pytest
from documented_store import documented_kinds, documented_metrics
from tiny_runs import Run, make_run

FAMILIES = {
    "areal": (),
    "grpo": ("--objective.preset", "grpo", "--objective.entropy_coefficient", "0.01"),
    "ppo": ("--objective.preset", "ppo", "--objective.kl_coefficient", "0.05"),
    "m2po": ("--objective.preset", "m2po"),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_everything_that_a_run_records_is_documented(tmp_path: Path, family: str) -> None:
    run = Run(make_run(tmp_path), "--train.num_steps", "3", *FAMILIES[family])
    assert run.wait() == 0, run.output
    with run.reader() as reader:
        recorded = {name for step in reader.steps() for name in step.metrics}
        kinds = {str(event.__struct_config__.tag) for event in reader.events()}
    assert {"reward", "loss", "gate_closed_seconds", "grade_seconds"} <= recorded <= documented_metrics()
    assert kinds <= documented_kinds()
