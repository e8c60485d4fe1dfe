"""Events of a run as a person watches it, and the state after them."""

from typing import Any

import numpy as np

from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    EngineReport,
    EvalFinished,
    GroupFinished,
    RunFinished,
    RunStarted,
    SftStep,
    StepFinished,
    WeightsLoaded,
)
from freerun.events.metrics import RunState
from freerun.types import Completion, Doing, EngineStats, Group, Prompt, Reward, Span, StepResult, Trajectory


def make_group(ordinal: int, text: str = " 56\n") -> Group:
    prompt = Prompt(
        ordinal=ordinal,
        key="7*8",
        text="Question: what is 7 times 8?\nAnswer:",
        answer="56",
        token_ids=np.arange(9),
    )
    completion = Completion(
        token_ids=np.arange(2), logprobs=np.zeros(2), spans=(Span(0, 2),), finish_reason="stop", text=text
    )
    trajectory = Trajectory(prompt=prompt, sample=0, completion=completion, reward=Reward(5.0, True))
    return Group(ordinal=ordinal, start_version=0, trajectories=(trajectory,))


def make_step(version: int, text: str = " 56\n", **changes: Any) -> StepFinished:
    metrics = {
        "reward": -4 + version * 0.4, "completion_length": 5.1, "num_tokens": 1200.0, "engine_trainer_kl": 1.2e-5,
        "entropy": 0.83,
    }  # fmt: skip
    result = StepResult(
        version=version,
        metrics=changes.get("metrics", metrics),
        staleness_counts=changes.get("staleness_counts", {0: 20, 1: 30, 2: 10, 3: 4}),
    )
    groups = tuple(make_group(8 * version + i, text) for i in range(8))
    return StepFinished(seconds=version * 2.4, result=result, groups=groups, step_seconds=1.9, wait_seconds=0.4)


def an_eval(
    seconds: float, *, version: int, accuracy: float, low: float, high: float, num_failed: int
) -> EvalFinished:
    return EvalFinished(
        seconds=seconds, version=version, accuracy=accuracy, accuracy_low=low, accuracy_high=high, num_prompts=64,
        num_samples=4, num_failed=num_failed, mean_length=7.0,
    )  # fmt: skip


def a_run(num_steps: int = 12, text: str = " 56\n") -> list[AnyEvent]:
    events: list[AnyEvent] = [
        RunStarted(
            seconds=0.0,
            name="times-tables",
            directory="runs/times-tables",
            num_steps=60,
            version=0,
            max_staleness=4,
        ),
        Activity(seconds=0.1, worker="trainer", doing=Doing("starting")),
        Activity(seconds=0.1, worker="rollout-0", doing=Doing("starting")),
        SftStep(seconds=0.2, step=10, num_steps=50, loss=1.25, held_out_loss=1.5, lr=1e-3, num_tokens=9),
        an_eval(0.5, version=0, accuracy=0.18, low=0.12, high=0.26, num_failed=0),
    ]
    for version in range(1, num_steps + 1):
        stats = EngineStats(
            version=version, num_tokens=1228 * version, num_steps=90 * version, busy_seconds=2.1 * version,
            num_running=41, num_waiting=3, num_interrupts=38 * version, num_loads=version,
            load_seconds=0.06 * version, num_recomputed_tokens=1900 * version,
        )  # fmt: skip
        events += [
            GroupFinished(seconds=version * 2.4, ordinal=version, outcome="filtered"),
            EngineReport(seconds=version * 2.4, worker="rollout-0", stats=stats),
            make_step(version, text),
            WeightsLoaded(seconds=version * 2.4, version=version, checksum="ab"),
        ]
    end = num_steps * 2.4
    return [
        *events,
        an_eval(end, version=10, accuracy=0.55, low=0.45, high=0.65, num_failed=1),
        CheckpointSaved(seconds=end, version=10, directory="runs/times-tables/checkpoints/10"),
        GroupFinished(seconds=end, ordinal=99, outcome="failed", reason="grader-0 timed out after 10 s"),
        Activity(seconds=end, worker="controller", doing=Doing("waiting", "rollouts 12, 14")),
        Activity(seconds=end, worker="rollout-0", doing=Doing("generating")),
        Activity(seconds=end, worker="trainer", doing=Doing("training")),
    ]


def an_end(outcome: Any = "finished", reason: str = "") -> RunFinished:
    return RunFinished(
        seconds=30.0, outcome=outcome, reason=reason, version=12,
        model_directory="runs/times-tables/checkpoints/12/model",
    )  # fmt: skip


def state_of(events: list[AnyEvent]) -> RunState:
    state = RunState()
    for event in events:
        state(event)
    return state
