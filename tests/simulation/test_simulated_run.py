"""Simulated runs: the same events for the same seed, the promises of the controller, and the right dependence."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from simulated_setups import make_recipe, make_setup

from freerun.config.engine import EngineConfig
from freerun.config.recipe import BufferConfig
from freerun.config.rollout import RolloutConfig
from freerun.errors import FreerunError
from freerun.events.events import AnyEvent, EngineLoaded, GroupFinished, StepFinished
from freerun.simulation.costs import LinearTrainer
from freerun.simulation.run import Setup, simulate
from freerun.types import encode

SUPPORT = Path(__file__).parents[1] / "support"


def events_of(setup: Setup) -> list[AnyEvent]:
    events: list[AnyEvent] = []
    simulate(setup, emit=events.append)
    return events


def fingerprint() -> str:
    """Of every event of a run, to the last bit."""
    digest = hashlib.sha256()
    for event in events_of(make_setup(grade_seconds=0.003)):
        digest.update(encode(event))
    return digest.hexdigest()


def test_the_same_seed_gives_the_same_events_under_any_hash_seed() -> None:
    program = "import test_simulated_run; print(test_simulated_run.fingerprint())"
    path = os.pathsep.join([str(Path(__file__).parent), str(SUPPORT)])
    seen = {fingerprint()}
    for hash_seed in ("1", "77"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        seen.add(done.stdout.strip())
    assert len(seen) == 1


def test_a_simulated_run_imports_no_torch() -> None:
    program = "import sys, freerun.simulation.plan; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("policy", ["wait", "drop", "requeue"])
@pytest.mark.parametrize("kv_on_load", ["recompute", "keep", "drain"])
def test_the_promises_of_the_controller_hold(
    policy: Literal["wait", "drop", "requeue"], kv_on_load: Literal["recompute", "keep", "drain"]
) -> None:
    recipe = make_recipe(
        buffer=BufferConfig(max_staleness=1, policy=policy),
        engine=EngineConfig(num_workers=2, num_slots=16, cache_tokens=900, kv_on_load=kv_on_load),
    )
    events = events_of(make_setup(recipe=recipe))
    steps = [event for event in events if isinstance(event, StepFinished)]
    assert [step.result.version for step in steps] == list(range(1, 13))
    assert all(max(step.result.staleness_counts) <= 1 for step in steps)
    trained = [group.ordinal for step in steps for group in step.groups]
    assert len(set(trained)) == len(trained) == 12 * 8
    for step in steps:
        for trajectory in (t for group in step.groups for t in group.trajectories):
            spans = trajectory.completion.spans
            assert sum(span.num_tokens for span in spans) == len(trajectory.completion.token_ids)
            versions = [span.version for span in spans]
            assert all(a is not None and b is not None and a < b for a, b in pairwise(versions))
            if kv_on_load == "drain":
                assert len(spans) == 1
    assert {event.outcome for event in events if isinstance(event, GroupFinished)} <= {
        "buffered", "dropped" if policy == "drop" else "requeued" if policy == "requeue" else "buffered"
    }  # fmt: skip
    loads = [event for event in events if isinstance(event, EngineLoaded)]
    assert len(loads) >= 2 * 11
    assert any(event.num_interrupts for event in loads) == (kv_on_load != "drain")


def test_time_adds_up() -> None:
    outcome = simulate(make_setup())
    shares = outcome.trainer_busy + outcome.trainer_waits
    assert 0.9 < shares <= 1.0 + 1e-9
    assert outcome.engine_busy + outcome.engine_loading <= 1.0 + 1e-9
    assert outcome.num_tokens == pytest.approx(outcome.tokens_per_second * outcome.seconds)
    assert sum(outcome.staleness.values()) == len(outcome.steps) * 32
    assert len(outcome.steps) == 8


def test_asynchronous_runs_train_more_and_a_slow_trainer_sets_the_pace() -> None:
    setup = make_setup()
    synchronous = replace(setup, recipe=make_recipe(buffer=BufferConfig(max_staleness=0)))
    assert simulate(setup).tokens_per_second > 1.2 * simulate(synchronous).tokens_per_second
    slow = replace(setup, trainer_costs=LinearTrainer(step=30.0, token=0.0))
    outcome = simulate(slow)
    assert outcome.step_seconds == pytest.approx(30.0, rel=0.01)
    assert outcome.trainer_busy > 0.99
    assert outcome.gate_closed > 0.5


def test_graders_that_take_long_hold_the_trainer_up() -> None:
    quick, slow = make_setup(grade_seconds=0.001), make_setup(grade_seconds=1.0)
    assert simulate(quick).grader_busy < 0.1
    outcome = simulate(slow)
    assert outcome.grader_busy > 0.95
    # 32 samples a step, two graders.
    assert outcome.step_seconds == pytest.approx(16.0, rel=0.1)


def test_a_small_cache_preempts_and_a_large_one_does_not() -> None:
    small = make_recipe(engine=EngineConfig(num_workers=2, num_slots=16, cache_tokens=800))
    assert simulate(make_setup(recipe=small)).num_preemptions > 0
    assert simulate(make_setup()).num_preemptions == 0


def test_sessions_are_refused_because_their_tools_take_unknown_time() -> None:
    recipe = make_recipe(rollout=RolloutConfig(episode="games:play"))
    with pytest.raises(FreerunError, match="sessions of several turns are not simulated"):
        simulate(make_setup(recipe=recipe))
