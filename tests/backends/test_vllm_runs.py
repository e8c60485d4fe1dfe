"""Real runs with vLLM servers: they are killed in the middle, nothing is lost, nothing is left behind."""

import os
import tempfile
from pathlib import Path

import psutil
from tiny_runs import Run, are_gone, assert_exactly_once, make_run
from vllm_rig import SIZES

SERVER = "vllm.entrypoints.openai.api_server"
VLLM = ("--engine.backend", "vllm")
START_SECONDS = 170


def left_behind() -> set[str]:
    """What vLLM's processes make to find each other."""
    temporary = {name for name in os.listdir(tempfile.gettempdir()) if "vllm" in name}
    return temporary | set(os.listdir("/dev/shm"))


def test_a_killed_server_is_replaced_and_a_killed_controller_takes_everything_with_it(tmp_path: Path) -> None:
    before = left_behind()
    recipe = make_run(tmp_path, **SIZES)
    run = Run(
        recipe, *VLLM, "--train.num_steps", "400", "--checkpoint.every_steps", "2", "--eval.every_steps", "3"
    )
    run.until(lambda: "step 3/" in run.output, START_SECONDS)
    run.workers(SERVER)[0].kill()
    run.until(lambda: "rollout-0" in run.output and "was killed by signal 9" in run.output, 60)
    num_steps = run.reader().steps()[-1].version + 6
    run.until(lambda: f"step {num_steps}/" in run.output, START_SECONDS)
    workers = run.workers()
    assert any(SERVER in " ".join(worker.cmdline()) for worker in workers if worker.is_running())
    assert len(workers) >= 7, "controller's workers, and three processes of vLLM"
    run.kill()
    assert are_gone(workers)
    assert left_behind() <= before

    num_steps = run.reader().steps()[-1].version + 4
    resumed = Run(recipe, "--resume", "--train.num_steps", str(num_steps))
    assert resumed.wait(START_SECONDS + 60) == 0, resumed.output
    assert_exactly_once(resumed, num_steps=num_steps)
    reader = resumed.reader()
    trajectories = [t for version in range(1, num_steps + 1) for t in reader.trajectories(version)]
    assert max(t.staleness for t in trajectories) <= 4
    assert left_behind() <= before
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
