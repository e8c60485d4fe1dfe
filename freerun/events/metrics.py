"""The state of a run, accumulated from its events; the live view and the summary both render it.

`RunState` is a listener. Every event updates it in microseconds, and nothing is formatted here. Numbers that
depend on the time take `now`, on the run's clock. Events read back from a store give the same state, except for
the recent completions, which the store keeps elsewhere.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    CoresMoved,
    EngineReport,
    EvalFinished,
    EvalSkipped,
    GroupFinished,
    RunFinished,
    RunStarted,
    SftStep,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
)
from freerun.events.schema import Rewound
from freerun.types import Doing, EngineStats, StepResult

WINDOW_SECONDS = 15.0
WINDOW_STEPS = 8
NUM_RECENT = 6
MAX_TEXT = 400
"""Characters of a prompt's end and a completion's start that are kept for showing."""


@dataclass
class EngineTrack:
    """One engine's counters, which keep growing when its process is replaced."""

    latest: EngineStats = field(default_factory=EngineStats)
    earlier: Counter[str] = field(default_factory=Counter)
    """Counts of the processes that died."""
    window: deque[tuple[float, float, float]] = field(default_factory=deque)
    """(seconds, tokens, busy seconds) of the last reports."""
    first: tuple[float, float, float] | None = None

    def report(self, seconds: float, stats: EngineStats) -> None:
        if stats.num_steps < self.latest.num_steps:
            for name in ("num_tokens", "busy_seconds", "num_interrupts", "num_loads", "load_seconds",
                         "num_recomputed_tokens"):  # fmt: skip
                self.earlier[name] += getattr(self.latest, name)
            self.window.clear()
        self.latest = stats
        point = (seconds, self.total("num_tokens"), self.total("busy_seconds"))
        if stats.version is not None:  # before its first weights an engine has nothing to generate with
            self.first = self.first or point
        self.window.append(point)
        while len(self.window) > 2 and self.window[0][0] < seconds - WINDOW_SECONDS:
            self.window.popleft()

    def total(self, name: str) -> float:
        """A counter of `EngineStats` over the whole run."""
        return float(getattr(self.latest, name) + self.earlier[name])

    @property
    def tokens_per_second(self) -> float | None:
        return _slope([(seconds, tokens) for seconds, tokens, _ in self.window])

    @property
    def recent_busy_share(self) -> float | None:
        return _busy_share(self.window)

    @property
    def busy_share(self) -> float | None:
        """Share of the time since it had weights that the engine was computing."""
        return None if self.first is None else _busy_share((self.first, self.window[-1]))


@dataclass
class Step:
    """The facts kept about a training step."""

    seconds: float
    step_seconds: float
    wait_seconds: float
    result: StepResult

    @property
    def begin(self) -> float:
        """When the trainer began to wait for this step's batch."""
        return self.seconds - self.step_seconds - self.wait_seconds

    @property
    def num_tokens(self) -> float:
        return self.result.metrics.get("num_tokens", 0.0)

    @property
    def why_no_update(self) -> str:
        """Why the step did not change the weights; empty if it did, or if unknown."""
        metrics = self.result.metrics
        if "grad_norm" in metrics or "skipped_updates" not in metrics:
            return ""
        return (
            "the gradients were not finite" if metrics["skipped_updates"] else "every group's rewards were equal"
        )


@dataclass
class RecentCompletion:
    """The end of a prompt, the start of what was sampled for it, and its reward; text still hostile."""

    prompt: str
    completion: str
    reward: float
    is_correct: bool


@dataclass
class RunState:
    """The state after all events so far; call it with each event."""

    name: str = ""
    directory: str = ""
    num_steps: int = 0
    max_staleness: int = 0
    start_version: int = 0
    version: int = 0
    started: float = 0.0
    seconds: float = 0.0
    """The run's clock at the newest event."""
    rewards: list[float] = field(default_factory=list)
    """One per step that had a reward."""
    evals: list[EvalFinished] = field(default_factory=list)
    skipped_evals: list[EvalSkipped] = field(default_factory=list)
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    first_step: Step | None = None
    train_seconds: float = 0.0
    cores: CoresMoved | None = None
    """The trainer's cores, if they have changed."""
    returned_seconds: float = 0.0
    """Time for which the trainer borrowed cores, up to the last return."""
    num_trained: int = 0
    """Samples trained on."""
    num_steps_seen: int = 0
    num_steps_without_update: int = 0
    """Steps that did not change the weights."""
    last_reason_without_update: str = ""
    staleness_counts: Counter[int] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    """Groups by the outcome of their rollout."""
    last_failure: str = ""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed groups by where they failed: see `failure_kind`."""
    engines: dict[str, EngineTrack] = field(default_factory=dict)
    loaded_version: int = 0
    activities: dict[str, Activity] = field(default_factory=dict)
    deaths: list[WorkerDied] = field(default_factory=list)
    recent: deque[RecentCompletion] = field(default_factory=lambda: deque(maxlen=NUM_RECENT))
    sft: list[SftStep] = field(default_factory=list)
    checkpoint: CheckpointSaved | None = None
    finished: RunFinished | None = None

    def __call__(self, event: AnyEvent | Rewound) -> None:
        self.seconds = max(self.seconds, event.seconds)
        match event:
            case Activity():
                self.activities[event.worker] = event
            case EngineReport():
                self.engines.setdefault(event.worker, EngineTrack()).report(event.seconds, event.stats)
            case CoresMoved():
                self._move(event)
            case GroupFinished():
                self.groups[event.outcome] += 1
                if event.outcome == "failed":
                    self.last_failure = event.reason
                    self.failures[failure_kind(event.reason)] += 1
            case StepFinished():
                self._finish_step(event)
            case WeightsLoaded():
                self.loaded_version = event.version
            case EvalFinished():
                self.evals.append(event)
            case EvalSkipped():
                self.skipped_evals.append(event)
            case CheckpointSaved():
                self.checkpoint = event
            case SftStep():
                self.sft.append(event)
            case WorkerDied():
                self.deaths.append(event)
                doing = Doing("died", event.reason.partition("\n")[0])
                self.activities[event.worker] = Activity(seconds=event.seconds, worker=event.worker, doing=doing)
            case RunStarted():
                self._start(event)
            case RunFinished():
                self.finished = event

    @property
    def reward_parts(self) -> dict[str, float]:
        """Mean of each part of the reward in the last step, by name; empty for a reward of one part."""
        metrics = self.steps[-1].result.metrics if self.steps else {}
        prefix = "reward/"
        return {name.removeprefix(prefix): mean for name, mean in metrics.items() if name.startswith(prefix)}

    @property
    def worst_staleness(self) -> int | None:
        """The greatest staleness of any sample trained on."""
        return max(self.staleness_counts) if self.staleness_counts else None

    @property
    def is_bound_held(self) -> bool:
        return self.worst_staleness is None or self.worst_staleness <= self.max_staleness

    @property
    def generated_tokens_per_second(self) -> float | None:
        """All engines together, over the last seconds."""
        rates = [e.tokens_per_second for e in self.engines.values()]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    @property
    def trained_tokens_per_second(self) -> float | None:
        """Sampled tokens consumed per second over the last steps, waiting included."""
        seconds = self.steps[-1].seconds - self.steps[0].begin if self.steps else 0.0
        tokens = sum(step.num_tokens for step in self.steps)
        if tokens and seconds > 0:
            return tokens / seconds
        return self.steps[-1].result.metrics.get("train_tokens_per_second") if self.steps else None

    @property
    def recent_train_share(self) -> float | None:
        """Share of the time over the last steps that the trainer was training."""
        if not self.steps:
            return None
        return _share(sum(s.step_seconds for s in self.steps), self.steps[-1].seconds - self.steps[0].begin)

    @property
    def train_share(self) -> float | None:
        """Busy share of the trainer since its first batch."""
        if self.first_step is None:
            return None
        return _share(self.train_seconds, self.steps[-1].seconds - self.first_step.begin)

    @property
    def borrowed_seconds(self) -> float:
        """Total time for which the trainer has borrowed cores."""
        return self.returned_seconds + self._open_loan_seconds(self.seconds)

    @property
    def recent_generate_share(self) -> float | None:
        """Mean busy share of the engines over the last seconds."""
        shares = [e.recent_busy_share for e in self.engines.values()]
        known = [share for share in shares if share is not None]
        return sum(known) / len(known) if known else None

    def engine_total(self, name: str) -> float:
        """A counter of `EngineStats` over all engines and the whole run."""
        return sum(engine.total(name) for engine in self.engines.values())

    @property
    def is_sft_only(self) -> bool:
        """Whether it is a run of SFT alone, of which nothing is evaluated."""
        return bool(self.sft) and not self.num_steps and not self.evals

    @property
    def sft_seconds_left(self) -> float | None:
        """Time left of SFT, at its pace since it began."""
        if len(self.sft) < 2:
            return None
        first, last = self.sft[0], self.sft[-1]
        if last.step == first.step:
            return None
        return (last.seconds - first.seconds) / (last.step - first.step) * (last.num_steps - last.step)

    def eta_seconds(self, now: float) -> float | None:
        """Time left at the pace of the last steps."""
        if not self.steps or self.finished:
            return None
        pace = (self.steps[-1].seconds - self.steps[0].begin) / len(self.steps)
        since_last = min(now - self.steps[-1].seconds, pace)
        return max(0.0, pace * (self.num_steps - self.version) - since_last)

    def _move(self, event: CoresMoved) -> None:
        self._end_loan(event.seconds)
        self.cores = event

    def _end_loan(self, seconds: float) -> None:
        self.returned_seconds += self._open_loan_seconds(seconds)
        self.cores = None

    def _open_loan_seconds(self, now: float) -> float:
        """How long the trainer has had its currently borrowed cores."""
        return now - self.cores.seconds if self.cores is not None and self.cores.num_borrowed else 0.0

    def _start(self, event: RunStarted) -> None:
        self._end_loan(event.seconds)  # with the processes of the start before
        self.name, self.directory = event.name, event.directory
        self.num_steps, self.max_staleness = event.num_steps, event.max_staleness
        self.start_version = self.version = event.version
        self.started, self.finished = event.seconds, None
        self.activities.clear()

    def _finish_step(self, event: StepFinished) -> None:
        result = event.result
        step = Step(event.seconds, event.step_seconds, event.wait_seconds, result)
        self.version = result.version
        self.steps.append(step)
        self.first_step = self.first_step or step
        self.train_seconds += event.step_seconds
        self.num_steps_seen += 1
        if step.why_no_update:
            self.num_steps_without_update += 1
            self.last_reason_without_update = step.why_no_update
        self.staleness_counts.update(result.staleness_counts)
        self.num_trained += sum(result.staleness_counts.values())
        if "reward" in result.metrics:
            self.rewards.append(result.metrics["reward"])
        for group in filter(lambda g: g.trajectories, event.groups[-NUM_RECENT:]):
            samples = group.samples
            shown = samples[result.version % len(samples)].parts[0]
            self.recent.append(
                RecentCompletion(
                    prompt=shown.prompt.text[-MAX_TEXT:],
                    completion=shown.completion.text[:MAX_TEXT],
                    reward=shown.reward.value,
                    is_correct=shown.reward.is_correct,
                )
            )


def failure_kind(reason: str) -> str:
    """A key for failures of the same cause: the traceback's frames, or the line without numbers."""
    lines = reason.strip().splitlines()
    if len(lines) > 2:
        return "\n".join([*lines[1:-1], lines[-1].partition(":")[0]])
    return re.sub(r"\d+", "#", reason.strip())


def _busy_share(points: Iterable[tuple[float, float, float]]) -> float | None:
    share = _slope([(seconds, busy) for seconds, _, busy in points])
    return None if share is None else min(1.0, share)


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Slope per second between the first and the last point; None if undefined."""
    if not points or points[-1][0] <= points[0][0]:
        return None
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None
