"""Events of a small run, and a store that has recorded them."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from freerun.events.events import (
    AnyEvent,
    EvalFinished,
    GroupFinished,
    PromptResult,
    RunFinished,
    RunStarted,
    StepFinished,
)
from freerun.events.store import Store
from freerun.types import Completion, Group, Prompt, Reward, Span, StepResult, Trajectory


def make_group(ordinal: int, *, group_size: int = 2, text: str = " 56\n", oldest: int = 0) -> Group:
    prompt = Prompt(ordinal=ordinal, key="7*8", text="7*8=", answer="56", token_ids=np.arange(4, dtype=np.int32))
    completion = Completion(
        token_ids=np.array([5, 6, 7], np.int32),
        logprobs=np.array([-0.1, -0.2, -0.3], np.float32),
        spans=(Span(oldest, 1), Span(oldest + 1, 2)),
        finish_reason="stop",
        text=text,
    )
    trajectories = tuple(
        Trajectory(prompt=prompt, sample=i, completion=completion, reward=Reward(5.0 - i, i == 0))
        for i in range(group_size)
    )
    return Group(ordinal=ordinal, start_version=oldest, trajectories=trajectories)


def make_step(version: int, groups: tuple[Group, ...] | None = None, **metrics: float) -> StepFinished:
    result = StepResult(version=version, metrics={"reward": version / 10} | metrics, staleness_counts={0: 1, 2: 3})
    groups = (make_group(2 * version), make_group(2 * version + 1)) if groups is None else groups
    return StepFinished(seconds=version * 2.0, result=result, groups=groups, step_seconds=1.5, wait_seconds=0.5)


def a_start(version: int = 0) -> RunStarted:
    return RunStarted(seconds=0.0, name="r", directory="runs/r", num_steps=60, version=version, max_staleness=4)


def an_end(outcome: Any = "finished") -> RunFinished:
    return RunFinished(seconds=99.0, outcome=outcome, reason="", version=3, model_directory="runs/r/model")


def an_eval(version: int, accuracy: float = 0.5) -> EvalFinished:
    return EvalFinished(
        seconds=1.0,
        version=version,
        accuracy=accuracy,
        accuracy_low=accuracy - 0.1,
        accuracy_high=accuracy + 0.1,
        num_prompts=8,
        num_samples=4,
        num_failed=0,
        mean_length=5.0,
    )


def a_loss(ordinal: int = 9, outcome: Any = "filtered", *, seconds: float = 3.0) -> GroupFinished:
    """A group that was sampled and not trained on."""
    group = make_group(ordinal)
    return GroupFinished(
        seconds=seconds,
        ordinal=ordinal,
        outcome=outcome,
        prompt=group.trajectories[0].prompt,
        lost=group.trajectories,
    )


def write(directory: Path, *events: AnyEvent) -> None:
    with Store(directory) as store:
        for event in events:
            store(event)


def an_eval_with_prompts(version: int, num_correct: int = 1) -> EvalFinished:
    group = make_group(-1, oldest=0)
    prompt = PromptResult(
        ordinal=-1, key="k", num_samples=2, num_correct=num_correct, mean_reward=0.5, mean_length=3.0
    )
    failed = PromptResult(
        ordinal=-2,
        key="l",
        num_samples=0,
        num_correct=0,
        mean_reward=math.nan,
        mean_length=math.nan,
        failure="no\ud800",
    )
    return msgspec.structs.replace(an_eval(version), prompts=(prompt, failed), groups=(group.trajectories,))
