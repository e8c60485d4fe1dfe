"""The state of a run, accumulated from its events; the live view and the summary both render it.

`RunState` is a listener. Every event updates it in microseconds, and nothing is formatted here. Numbers that
depend on the current time take `now`, on the run's clock. Events read from a store give the same state, except
for the recent completions, which the store keeps in another table.
"""

import re
from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec

from freerun.events.engine_track import EngineTrack, TokenMarks
from freerun.events.events import (
    Activity,
    AnyEvent,
    CheckpointSaved,
    CoresMoved,
    EngineLoaded,
    EngineReport,
    EvalFinished,
    EvalSkipped,
    GraderReport,
    GroupFinished,
    ProcessReport,
    ProcessUse,
    Queues,
    RecentCompletion,
    RunFinished,
    RunStarted,
    SftStep,
    StepFinished,
    WeightsLoaded,
    WorkerDied,
    excerpt_of,
)
from freerun.events.intervals import TRAINER, Occupation
from freerun.events.kept_facts import EvalMark, GraderTrack, Step
from freerun.events.schema import Rewound
from freerun.events.split_advice import Division
from freerun.types import Doing

WINDOW_STEPS = 8
NUM_FIRST_STEPS = 5
NUM_LAST_STEPS = 20
KEEP_SECONDS = 600.0
"""How far back the activities of each process are kept."""
NUM_RECENT = 40
"""Completions to show, more than most terminals have lines."""


PROGRESS = (GroupFinished, StepFinished, SftStep, EvalFinished, EngineLoaded, WeightsLoaded, CheckpointSaved)
"""Events that count as progress of the run."""


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
    """One per step that has a reward."""
    evals: list[EvalFinished] = field(default_factory=list)
    skipped_evals: list[EvalSkipped] = field(default_factory=list)
    eval_marks: list[EvalMark] = field(default_factory=list)
    """One per evaluation."""
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    first_steps: list[Step] = field(default_factory=list)
    last_steps: deque[Step] = field(default_factory=lambda: deque(maxlen=NUM_LAST_STEPS))
    first_step: Step | None = None
    train_seconds: float = 0.0
    cores: CoresMoved | None = None
    """The trainer's cores, if they have been moved."""
    returned_seconds: float = 0.0
    """Total time of borrowed cores, up to the last return."""
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
    """Failed groups by kind of failure; see `failure_kind`."""
    engines: dict[str, EngineTrack] = field(default_factory=dict)
    token_marks: TokenMarks = field(default_factory=TokenMarks)
    graders: dict[str, GraderTrack] = field(default_factory=dict)
    processes: dict[str, ProcessUse] = field(default_factory=dict)
    """Resource usage of each process, from the last report."""
    queues: Queues | None = None
    loaded_version: int = 0
    is_live: bool = False
    group_size: int = 0
    prompts_per_step: int = 0
    grade_limit_seconds: float = 0.0
    division: Division | None = None
    """The division between rollouts and training; None if the run does not report it."""
    origin: str = ""
    progressed: float = 0.0
    """When any process last made progress."""
    occupation: Occupation = field(default_factory=lambda: Occupation(keep_seconds=KEEP_SECONDS))
    """What each process did in the last minutes."""
    activities: dict[str, Activity] = field(default_factory=dict)
    deaths: list[WorkerDied] = field(default_factory=list)
    recent: deque[RecentCompletion] = field(default_factory=lambda: deque(maxlen=NUM_RECENT))
    excerpted: set[int] = field(default_factory=set)
    """Groups not trained on yet of which a completion has already been shown."""
    sft: list[SftStep] = field(default_factory=list)
    checkpoint: CheckpointSaved | None = None
    finished: RunFinished | None = None

    def __call__(self, event: AnyEvent | Rewound) -> None:
        self.seconds = max(self.seconds, event.seconds)
        self.occupation(event)
        if isinstance(event, PROGRESS):
            self.progressed = event.seconds
        match event:
            case Activity():
                self.activities[event.worker] = event
            case EngineReport():
                self._note_engine(event)
            case CoresMoved():
                self._move(event)
            case GroupFinished():
                self._finish_group(event)
            case Queues():
                self.queues = event
            case EngineLoaded():
                self.engines.setdefault(event.worker, EngineTrack()).loaded_version = event.version
            case GraderReport():
                first = GraderTrack(event, event.num_graded, event.num_failed)
                self.graders.setdefault(event.worker, first).report(event)
            case ProcessReport():
                self.processes = {use.worker: use for use in event.processes}
            case StepFinished():
                self._finish_step(event)
            case WeightsLoaded():
                self.loaded_version = event.version
            case EvalFinished():
                self._finish_eval(event)
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
        """Rate of all engines together, over the last seconds."""
        rates = [e.tokens_per_second for e in self.engines.values()]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    @property
    def trained_tokens_per_second(self) -> float | None:
        """Sampled tokens consumed per second over the last steps, including waits."""
        seconds = self.steps[-1].seconds - self.steps[0].begin if self.steps else 0.0
        tokens = sum(step.num_tokens for step in self.steps)
        if tokens and seconds > 0:
            return tokens / seconds
        return self.steps[-1].result.metrics.get("train_tokens_per_second") if self.steps else None

    @property
    def recent_train_share(self) -> float | None:
        """Share of time spent training, over the last steps."""
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

    @property
    def generate_share(self) -> float | None:
        """Mean busy share of the engines since their first weights."""
        known = [share for engine in self.engines.values() if (share := engine.busy_share) is not None]
        return sum(known) / len(known) if known else None

    def engine_total(self, name: str) -> float:
        """A counter of `EngineStats`, summed over all engines and the whole run."""
        return sum(engine.total(name) for engine in self.engines.values())

    @property
    def is_sft_only(self) -> bool:
        """Whether the run consists of SFT alone, without evaluations."""
        return bool(self.sft) and not self.num_steps and not self.evals

    @property
    def sft_seconds_left(self) -> float | None:
        """Estimated time left of SFT, at its mean pace."""
        if len(self.sft) < 2:
            return None
        first, last = self.sft[0], self.sft[-1]
        if last.step == first.step:
            return None
        return (last.seconds - first.seconds) / (last.step - first.step) * (last.num_steps - last.step)

    def eta_seconds(self, now: float) -> float | None:
        """Estimated time left, at the pace of the last steps."""
        if not self.steps or self.finished:
            return None
        pace = (self.steps[-1].seconds - self.steps[0].begin) / len(self.steps)
        since_last = min(now - self.steps[-1].seconds, pace)
        return max(0.0, pace * (self.num_steps - self.version) - since_last)

    def _note_engine(self, event: EngineReport) -> None:
        engine = self.engines.setdefault(event.worker, EngineTrack())
        before = engine.total("num_tokens")
        engine.report(event.seconds, event.stats)
        if event.stats.version is not None:  # time before the first weights does not count as generation
            self.token_marks.begin(event.seconds, self.engine_total("num_tokens"))
        if engine.total("num_tokens") > before:
            self.progressed = event.seconds

    def _finish_group(self, event: GroupFinished) -> None:
        self.groups[event.outcome] += 1
        if event.excerpt is not None:
            self.recent.append(event.excerpt)
            self.excerpted.add(event.ordinal)
        if event.outcome == "failed":
            self.last_failure = event.reason
            self.failures[failure_kind(event.reason)] += 1

    def _finish_eval(self, event: EvalFinished) -> None:
        """Record an evaluation; a resumed run evaluates its first version again."""
        self.evals = [row for row in self.evals if row.version != event.version]
        self.evals.append(msgspec.structs.replace(event, prompts=(), groups=()))
        metrics = self.steps[-1].result.metrics if self.steps else {}
        self.eval_marks = [mark for mark in self.eval_marks if mark.version != event.version]
        self.eval_marks.append(EvalMark(event.version, event.accuracy, metrics))

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
        self._end_loan(event.seconds)  # the processes of the previous session are gone
        self.name, self.directory = event.name, event.directory
        self.num_steps, self.max_staleness = event.num_steps, event.max_staleness
        self.group_size, self.prompts_per_step = event.group_size, event.prompts_per_step
        self.division = Division(event.num_engines, event.gpus_per_engine, event.num_ranks)
        self.grade_limit_seconds, self.progressed = event.grade_limit_seconds, event.seconds
        self.loaded_version, self.is_live = event.version, event.is_live
        self.origin = event.origin or self.origin  # holds for later sessions too
        self.start_version = self.version = event.version
        self.started = self.seconds = event.seconds  # may be before the last session's end
        self.finished = None
        self.token_marks = TokenMarks()
        self.activities.clear()

    def _finish_step(self, event: StepFinished) -> None:
        result = msgspec.structs.replace(event.result, trajectories=())
        step = Step(event.seconds, event.step_seconds, event.wait_seconds, result)
        self.version = result.version
        if TRAINER in self.activities:  # its last activity is over; the next event tells the current one
            self.activities[TRAINER] = Activity(seconds=event.seconds, worker=TRAINER, doing=Doing("idle"))
        self.steps.append(step)
        self.last_steps.append(step)
        if len(self.first_steps) < NUM_FIRST_STEPS:
            self.first_steps.append(step)
        self.first_step = self.first_step or step
        self.train_seconds += event.step_seconds
        self.token_marks.note(event.seconds, self.engine_total("num_tokens"))
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
            self.show(excerpt_of(samples[result.version % len(samples)].parts[0]), group.ordinal)

    def show(self, excerpt: RecentCompletion, ordinal: int) -> None:
        """Add a trained completion, unless its group already showed one when it finished."""
        if ordinal in self.excerpted:
            self.excerpted.discard(ordinal)
        else:
            self.recent.append(excerpt)


def failure_kind(reason: str) -> str:
    """A key that is equal for failures of one cause: a traceback's frames, or the line without numbers."""
    lines = reason.strip().splitlines()
    if len(lines) > 2:
        return "\n".join([*lines[1:-1], lines[-1].partition(":")[0]])
    return re.sub(r"\d+", "#", reason.strip())


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0 else None
