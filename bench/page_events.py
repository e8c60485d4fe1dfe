"""What the processes of a run report between two steps of a second: about a hundred events, as in a real run."""

from collections.abc import Iterator

from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    EngineLoaded,
    EngineReport,
    EvalFinished,
    GraderReport,
    GroupFinished,
    ProcessReport,
    ProcessUse,
    QueueCounts,
    Queues,
    WeightsLoaded,
)
from freerun.types import Doing, EngineStats

WORKERS = tuple(f"rollout-{i}" for i in range(4))
GRADER = "grader-0"
EVAL_EVERY_STEPS = 50
PROCESS_EVERY_STEPS = 5


def events_before_step(version: int, num_groups: int) -> Iterator[AnyEvent]:
    """From the end of the step before, in the order of time."""
    begin = version - 1.0
    yield WeightsLoaded(seconds=begin, version=version - 1, checksum="0")
    for worker in WORKERS:
        yield EngineLoaded(
            seconds=begin + 0.01, worker=worker, version=version - 1, load_seconds=0.005, num_interrupts=16
        )
        yield Activity(seconds=begin + 0.01, worker=worker, doing=Doing("generating"))
    yield from _now_and_then(version, begin)
    for part in range(2):
        middle = begin + 0.02 + 0.5 * part
        yield Queues(seconds=middle, counts=_counts(part, version))
        yield from (_report_of(worker, middle, version) for worker in WORKERS)
        for i in range(num_groups // 2):
            yield _group(version * num_groups + part * num_groups // 2 + i, middle + i / num_groups)
    yield Activity(seconds=begin + 0.3, worker="trainer", doing=Doing("training", "micro-batch", 1, 8))
    yield Activity(seconds=begin + 0.6, worker="trainer", doing=Doing("training", "micro-batch", 5, 8))


def _now_and_then(version: int, begin: float) -> Iterator[AnyEvent]:
    at = begin + 0.015
    yield GraderReport(
        seconds=at, worker=GRADER, num_graded=512 * version, num_failed=0, busy_seconds=0.4 * at,
        slowest_seconds=0.01 + version % 7, up_seconds=at,
    )  # fmt: skip
    if version % PROCESS_EVERY_STEPS == 0:
        names = (*WORKERS, "trainer", "controller")
        uses = tuple(ProcessUse(worker=name, cpu_seconds=at, memory_bytes=10**9) for name in names)
        yield ProcessReport(seconds=at, processes=uses)
    if version % EVAL_EVERY_STEPS == 1:
        yield EvalFinished(
            seconds=at, version=version - 1, accuracy=version / 4000, accuracy_low=0.0, accuracy_high=1.0,
            num_prompts=100, num_samples=100, num_failed=0, mean_length=256.0,
        )  # fmt: skip
        yield CheckpointSaved(seconds=at, version=version - 1, directory="checkpoints/step")


def _counts(part: int, version: int) -> QueueCounts:
    return QueueCounts(
        num_running=64, num_ready=32 * part, gate_capacity=128, oldest_version=max(0, version - 2),
        gate_closed_seconds=0.1 * version,
    )  # fmt: skip


def _report_of(worker: str, seconds: float, version: int) -> EngineReport:
    stats = EngineStats(
        version=version - 1, num_tokens=int(32_000 * seconds), num_steps=int(500 * seconds),
        busy_seconds=0.9 * seconds, num_running=64, num_slots=64, num_loads=version, load_seconds=0.005 * version,
        decode_seconds=0.8 * seconds, recompute_seconds=0.1 * seconds, idle_seconds=0.05 * seconds,
        up_seconds=seconds,
    )  # fmt: skip
    return EngineReport(seconds=seconds, worker=worker, stats=stats)


def _group(ordinal: int, seconds: float) -> GroupFinished:
    return GroupFinished(
        seconds=seconds, ordinal=ordinal, outcome="buffered", num_tokens=2048, mean_reward=0.5,
        started=max(0.0, seconds - 2.0), sampled=seconds - 0.1, graded=seconds, worker=WORKERS[ordinal % 4],
    )  # fmt: skip
