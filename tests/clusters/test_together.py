"""The cluster in one run: vLLM servers and two FSDP2 ranks, each on a node of a Ray cluster."""

from pathlib import Path

import pytest
from ray_clusters import head_without_cpus, joining, nodes
from tiny_runs import Run, assert_exactly_once, make_run
from vllm_rig import SIZES

from freerun.events.events import WeightsLoaded

NUM_STEPS = 6


@pytest.mark.timeout(800)
def test_vllm_ranks_and_ray_train_together_and_the_laptop_takes_over(tmp_path: Path) -> None:
    recipe = make_run(tmp_path, **SIZES)
    with head_without_cpus() as cluster, nodes(cluster) as add_node:
        add_node(2)
        add_node(1)
        arguments = ("--engine.backend", "vllm", "--train.num_ranks", "2", "--train.num_steps", str(NUM_STEPS))
        patience = ("--runtime.start_seconds", "420", "--checkpoint.every_steps", "2")
        run = Run(recipe, *joining(cluster, *arguments, *patience))
        try:
            assert run.wait(480) == 0, run.output
        finally:
            if run.process.poll() is None:
                run.kill()
    assert_exactly_once(run, num_steps=NUM_STEPS)
    with run.reader() as reader:
        loaded = {e.version for e in reader.events("weights_loaded") if isinstance(e, WeightsLoaded)}
        trajectories = [t for version in range(1, NUM_STEPS + 1) for t in reader.trajectories(version)]
    assert loaded == set(range(NUM_STEPS + 1))
    assert max(t.staleness for t in trajectories) <= 4

    # The same run goes on as a laptop would have it: embedded engine, one rank, no cluster.
    plain = ("--engine.backend", "native", "--train.num_ranks", "1", "--runtime.backend", "local")
    more = Run(recipe, "--resume", *plain, "--runtime.address=", "--train.num_steps", str(NUM_STEPS + 2))
    assert more.wait(120) == 0, more.output
    assert_exactly_once(more, num_steps=NUM_STEPS + 2)
