"""Events of a run in which everything happens that the page shows; its texts may be chosen."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from recorded_events import write

from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    CoresMoved,
    EngineLoaded,
    EngineReport,
    EvalFinished,
    GraderReport,
    GroupFinished,
    Notice,
    PromptResult,
    QueueCounts,
    Queues,
    RunFinished,
    RunStarted,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.types import (
    Completion,
    Doing,
    EngineStats,
    Group,
    Prompt,
    Reward,
    Span,
    StepResult,
    TrainedTrajectory,
    Trajectory,
)

GROUP_SIZE = 4
GROUPS = 3
STEP_SECONDS = 2.0


@dataclass(frozen=True)
class Texts:
    """What a model, a data file, a user's grader and a dying process may write."""

    name: str = "rich"
    prompt: str = "What is 7 * 8?\nAnswer:"
    key: str = "times-tables:7*8"
    answer: str = "56"
    completion: str = " 56."
    metric: str = "own_metric"
    part: str = "format"
    reason: str = "exit status -9"
    worker: str = "rollout-0"
    failure: str = "grader-0 timed out after 10 s"


def rich_run(num_steps: int = 12, texts: Texts | None = None, *, is_ended: bool = True) -> list[AnyEvent]:
    """A run with two engines' worth of events: loads, interrupts, sessions, lost groups, a death, evaluations."""
    texts = texts or Texts()
    events = _beginning(num_steps, texts)
    for version in range(1, num_steps + 1):
        events += rich_step(version, texts)
    if num_steps:
        events += _evaluation(num_steps, texts)
    end = 2.0 + STEP_SECONDS * num_steps
    if is_ended:
        events.append(
            RunFinished(seconds=end, outcome="finished", version=num_steps, model_directory="checkpoints/1/model")
        )
    return events


def _beginning(num_steps: int, texts: Texts) -> list[AnyEvent]:
    return [
        RunStarted(
            seconds=0.0, name=texts.name, directory=f"runs/{texts.name}", num_steps=max(12, num_steps), version=0,
            max_staleness=4, group_size=GROUP_SIZE, prompts_per_step=GROUPS, grade_limit_seconds=10.0,
        ),
        Activity(seconds=0.1, worker="trainer", doing=Doing("starting")),
        Activity(seconds=0.1, worker=texts.worker, doing=Doing("waiting", texts.reason)),
        Notice(seconds=0.2, text=texts.reason),
        CoresMoved(seconds=0.3, cores=(0, 1), num_borrowed=1),
        WeightsLoaded(seconds=1.0, version=0, checksum="00"),
    ]  # fmt: skip


def rich_step(version: int, texts: Texts) -> list[AnyEvent]:
    end = 2.0 + STEP_SECONDS * version
    groups = tuple(_group(GROUPS * version + i, version, texts) for i in range(GROUPS))
    counts = QueueCounts(
        num_running=5, num_ready=version % 4, gate_capacity=4 * (version % 3), oldest_version=max(0, version - 2),
        gate_closed_seconds=0.4 * version,
    )  # fmt: skip
    events: list[AnyEvent] = [
        *(_life(group, end - STEP_SECONDS) for group in groups),
        Queues(seconds=end - 1.2, counts=counts),
        EngineReport(seconds=end - 1.0, worker="rollout-0", stats=_stats(version)),
        GraderReport(
            seconds=end - 0.9, worker="grader-0", num_graded=12 * version, num_failed=version // 5,
            busy_seconds=0.2 * version, slowest_seconds=0.1, up_seconds=2.0 * version,
        ),
        StepFinished(
            seconds=end, result=_result(version, groups, texts), groups=groups, step_seconds=1.5, wait_seconds=0.4,
            queues=counts,
        ),
        EngineLoaded(
            seconds=end + 0.1, worker="rollout-0", version=version, load_seconds=0.05, num_interrupts=3 + version
        ),
        WeightsLoaded(seconds=end + 0.1, version=version, checksum="ab"),
    ]  # fmt: skip
    if version % 4 == 0:
        events += [
            CheckpointSaved(seconds=end + 0.2, version=version, directory=f"checkpoints/{version}"),
            _lost(1000 + version, version, texts, end + 0.3),
            *_evaluation(version, texts),
        ]
    if version == 5:
        events.append(WorkerDied(seconds=end, worker=texts.worker, reason=texts.reason, is_restarted=True))
    return events


def _stats(version: int) -> EngineStats:
    return EngineStats(
        version=version, num_tokens=500 * version, num_steps=90 * version, busy_seconds=1.3 * version,
        num_running=9, num_waiting=2, num_slots=16, num_interrupts=5 * version, num_loads=version,
        load_seconds=0.05 * version, decode_seconds=0.9 * version, recompute_seconds=0.2 * version,
        evaluate_seconds=0.2 * version,
        idle_seconds=0.6 * version, up_seconds=2.0 * version, cache_tokens=4000, cache_tokens_used=1200,
    )  # fmt: skip


def _group(ordinal: int, version: int, texts: Texts) -> Group:
    ids = np.arange(4, dtype=np.int32)
    prompt = Prompt(ordinal=ordinal, key=texts.key, text=texts.prompt, answer=texts.answer, token_ids=ids)
    oldest = max(0, version - 3)
    trajectories = tuple(_trajectory(prompt, sample, oldest, version, texts) for sample in range(GROUP_SIZE))
    return Group(ordinal=ordinal, start_version=oldest, trajectories=trajectories)


def _trajectory(prompt: Prompt, sample: int, oldest: int, version: int, texts: Texts) -> Trajectory:
    is_right = (sample + prompt.ordinal) % 3 == 0
    spans = (Span(oldest, 2), Span(None, 2), Span(max(oldest, version - 1), 3, 1))
    completion = Completion(
        token_ids=np.array([5, 6, 7, 8, 9, 10, 11 + sample], np.int32),
        logprobs=np.array([-0.05, -1.2, 0, 0, -0.3, -2.5, -4.5], np.float32),
        spans=spans,
        finish_reason="length" if sample == 3 else "stop",
        text=texts.completion,
    )
    reward = Reward(5.0 if is_right else -5.0, is_right, {texts.part: 0.2, "number": -1.0}, (0.5, 1.0))
    return Trajectory(prompt=prompt, sample=sample, completion=completion, reward=reward)


def _result(version: int, groups: tuple[Group, ...], texts: Texts) -> StepResult:
    metrics = {
        "reward": -3 + 0.5 * version, "accuracy": 0.3 + 0.04 * version, "completion_length": 8.0 - 0.2 * version,
        "num_tokens": 60.0, "entropy": 1.5 / version, "effective_sample_size": 0.98, "staleness_mean": 2.0,
        "staleness_max": 3.0, "equal_group_share": 0.2, "cut_off_share": 0.25, "lr": 1e-5,
        f"reward/{texts.part}": 0.2, texts.metric: 1.0 * version,
    }  # fmt: skip
    trained = tuple(
        TrainedTrajectory(
            log_weights=np.array([0.1, -0.4, 0.0, 0.8, 0.02], np.float16),
            advantage=1.3 - i % 3,
            clipped=np.arange(i % 2),
        )
        for i, _ in enumerate(t for group in groups for t in group.trajectories)
    )
    phases = (("publishing", 0.1), ("proximal", 0.4), ("training", 0.8), ("updating", 0.2))
    counts = {0: 4, 3: 8}
    return StepResult(
        version=version, metrics=metrics, staleness_counts=counts, phases=phases, trajectories=trained
    )


def _life(group: Group, at: float) -> GroupFinished:
    i = group.ordinal % GROUPS
    return GroupFinished(
        seconds=at + 0.2 * i, ordinal=group.ordinal, outcome="buffered", num_tokens=20, mean_reward=0.5,
        started=max(1.0, at - 2.5), sampled=at - 0.2, graded=at + 0.1 * i, worker="rollout-0", num_interrupts=2,
        slots=tuple((max(1.0, at - 2.4) + 0.1 * sample, at - 0.8 + 0.2 * sample) for sample in range(GROUP_SIZE)),
    )  # fmt: skip


def _lost(ordinal: int, version: int, texts: Texts, seconds: float) -> GroupFinished:
    group = _group(ordinal, version, texts)
    return GroupFinished(
        seconds=seconds, ordinal=ordinal, outcome="failed", reason=texts.failure,
        prompt=group.trajectories[0].prompt, lost=group.trajectories,
    )  # fmt: skip


def _evaluation(version: int, texts: Texts) -> list[AnyEvent]:
    group = _group(-1, version, texts)
    prompts = (
        PromptResult(
            ordinal=-1, key=texts.key, num_samples=4, num_correct=1, mean_reward=0.1, mean_length=5.0,
        ),
        PromptResult(
            ordinal=-2, key="other", num_samples=0, num_correct=0, mean_reward=float("nan"),
            mean_length=float("nan"), failure=texts.failure,
        ),
    )  # fmt: skip
    accuracy = 0.2 + 0.04 * version
    return [
        EvalFinished(
            seconds=2.5 + STEP_SECONDS * version, version=version, accuracy=accuracy, accuracy_low=accuracy - 0.1,
            accuracy_high=accuracy + 0.1, num_prompts=2, num_samples=4, num_failed=1, mean_length=5.0,
            prompts=prompts, groups=(group.trajectories,),
        )
    ]  # fmt: skip


def make_crashed(directory: Path, events: list[AnyEvent]) -> None:
    """A store whose process is gone without having said so."""
    write(directory, *events)
    with closing(sqlite3.connect(directory / "store.sqlite")) as db, db:
        db.execute("UPDATE sessions SET pid = ?, state = 'running'", (2**22,))
