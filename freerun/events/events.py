"""Events of a run, typed: the store records them, the terminal view shows them.

The controller emits each event once, in order, to all listeners; listeners never delay it.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from freerun.types import Doing, EngineStats, Group, GroupOutcome, Prompt, StepResult, Trajectory

RunOutcome = Literal["finished", "interrupted", "failed"]
"""How a run ended."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", eq=False):
    """Base of all events; `seconds` is the run's clock, counted from the run's first start."""

    seconds: float


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of a session: what must be equal to get the same bits."""

    freerun: str = ""
    python: str = ""
    torch: str = ""
    cpu: str = ""
    """Model of the processor."""
    num_cores: int = 0
    """Cores that this process may use."""
    num_trainer_threads: int = 0
    grader_sha256: str = ""
    """Hash of the files that hold the user's reward functions; empty if there are none."""
    task_sha256: str = ""
    """Hash of the file of the user's task, or of the data file; empty for a built-in task."""


class RunStarted(Event, frozen=True, kw_only=True, tag="run_started"):
    name: str
    directory: str
    num_steps: int
    version: int
    """0 for a new run, the checkpoint's version for a resumed one."""
    max_staleness: int
    sft_step: int = 0
    """Supervised steps made before this session, if the run is resumed during SFT."""
    group_size: int = 0
    prompts_per_step: int = 0
    grade_limit_seconds: float = 0.0
    """Time limit of a grade; longer ones fail."""
    provenance: Provenance | None = None
    is_live: bool = False
    """Whether the run trains on live traffic."""
    num_engines: int = 0
    gpus_per_engine: int = 1
    """GPUs per engine as set in the recipe; a worker on CPUs counts as one."""
    num_ranks: int = 0
    settings: str = ""
    """The recipe of this session, as TOML; the store keeps it with the session, not with the event."""
    origin: str = ""
    """The run that this one continues or trains again with other settings; empty for an independent run."""


class Activity(Event, frozen=True, kw_only=True, tag="activity"):
    """What a process does from now on; the live view uses it to show what the process waits for."""

    worker: str
    """rollout-0, trainer, grader-0, controller."""
    doing: Doing


class Notice(Event, frozen=True, kw_only=True, tag="notice"):
    """A message that users should read once."""

    text: str


class PageOpened(Event, frozen=True, kw_only=True, tag="page_opened"):
    """The run's page is available; its token is in a file (`page_link.py`), never in an event."""

    url: str
    is_public: bool
    """Whether other machines can reach it."""


class CoresMoved(Event, frozen=True, kw_only=True, tag="cores_moved"):
    """The trainer computes on these cores from now on."""

    cores: tuple[int, ...]
    num_borrowed: int
    """Number of these cores that are borrowed from rollout workers."""


MAX_EXCERPT = 400
"""Characters kept for display, from a prompt's end and from a completion's start."""


class RecentCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a prompt, the start of its completion, and the reward; the text is not sanitised."""

    prompt: str
    completion: str
    reward: float
    is_correct: bool


def excerpt_of(trajectory: Trajectory) -> RecentCompletion:
    """The excerpt of a trajectory for one line of display."""
    return RecentCompletion(
        prompt=trajectory.prompt.text[-MAX_EXCERPT:],
        completion=trajectory.completion.text[:MAX_EXCERPT],
        reward=trajectory.reward.value,
        is_correct=trajectory.reward.is_correct,
    )


class GroupFinished(Event, frozen=True, kw_only=True, tag="group_finished"):
    """A group left the rollout stage: it went into the buffer or was given up."""

    ordinal: int
    outcome: GroupOutcome
    num_tokens: int = 0
    """Sampled tokens."""
    mean_reward: float = 0.0
    reason: str = ""
    """Why it failed, in one line."""
    started: float | None = None
    """When the gate admitted it, on the run's clock; None if never, or if it was in the buffer at a resume."""
    sampled: float | None = None
    """When its last token was sampled."""
    graded: float | None = None
    """When its last grade arrived."""
    worker: str = ""
    """The rollout worker that sampled it; for a session, its last call."""
    num_interrupts: int = 0
    """Number of loads that interrupted one of its completions."""
    slots: tuple[tuple[float, float], ...] = ()
    """When each of its completions took and left a slot of the engine; empty if the engine does not report it."""
    prompt: Prompt | None = None
    """The prompt of a lost group; the store keeps the newest ones in a separate table."""
    lost: tuple[Trajectory, ...] = ()
    """What a lost group had sampled; kept like its prompt."""
    excerpt: RecentCompletion | None = None
    """One of its completions, for about one group per second: the live view shows it before it is trained on."""


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What waits between rollouts and training."""

    num_running: int
    """Groups being sampled or graded."""
    num_ready: int
    """Finished groups in the buffer."""
    gate_capacity: int
    """Samples that may still start at this version; below a group's size the gate is closed."""
    oldest_version: int | None
    """The oldest version that a running or ready group may have tokens of."""
    gate_closed_seconds: float
    """How long the gate has been closed since the session began."""


class Queues(Event, frozen=True, kw_only=True, tag="queues"):
    """What waits between the stages; emitted at most twice a second, and only on a change."""

    counts: QueueCounts


class StepFinished(Event, frozen=True, kw_only=True, tag="step_finished"):
    result: StepResult
    groups: tuple[Group, ...]
    """The consumed batch; the store keeps every trajectory."""
    step_seconds: float
    wait_seconds: float
    """Time the trainer was idle before this step."""
    queues: QueueCounts | None = None
    """What waits after the step."""


class SftStep(Event, frozen=True, kw_only=True, tag="sft_step"):
    """A supervised step, before version 0; step 0 is the measurement before the first step."""

    step: int
    num_steps: int
    loss: float | None
    """Mean cross-entropy of the batch before the update; None for step 0."""
    held_out_loss: float | None = None
    """None if it was not measured."""
    lr: float
    num_tokens: int
    """Number of tokens with loss in the batch."""


class EngineReport(Event, frozen=True, kw_only=True, tag="engine_report"):
    worker: str
    stats: EngineStats


class EngineLoaded(Event, frozen=True, kw_only=True, tag="engine_loaded"):
    """An engine uses a new version from now on."""

    worker: str
    version: int
    load_seconds: float
    """How long decoding was paused, up to `seconds`."""
    num_interrupts: int
    """Sequences that continue under the new version."""
    drain_seconds: float = 0.0
    """How long available weights waited for the load to begin, while sequences finished under the old ones."""


class GraderReport(Event, frozen=True, kw_only=True, tag="grader_report"):
    """Counters of a grader process since its start, sent periodically."""

    worker: str
    num_graded: int
    """Number of jobs answered, including failures."""
    num_failed: int
    busy_seconds: float
    slowest_seconds: float
    """The longest job since the previous report."""
    up_seconds: float
    """Time since its start."""


class ProcessUse(msgspec.Struct, frozen=True, kw_only=True):
    """The operating system's figures for a process of this machine."""

    worker: str
    cpu_seconds: float
    """User and system CPU time since its start."""
    memory_bytes: int
    """Resident memory."""


class ProcessReport(Event, frozen=True, kw_only=True, tag="process_report"):
    """Resource usage of all processes of the run, every few seconds."""

    processes: tuple[ProcessUse, ...]


class WeightsLoaded(Event, frozen=True, kw_only=True, tag="weights_loaded"):
    """All engines confirmed version and checksum; in a what-if, without engines, the trainer made the version."""

    version: int
    checksum: str


class PromptResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one prompt in one evaluation."""

    ordinal: int
    key: str
    num_samples: int
    """Number of completions or sessions graded; 0 if the prompt failed."""
    num_correct: int
    mean_reward: float
    mean_length: float
    """Mean number of sampled tokens per completion or session."""
    failure: str = ""
    """Why it could not be sampled or graded; empty on success."""


class EvalRow(Event, frozen=True, kw_only=True, eq=True):
    """The numbers of an evaluation."""

    version: int
    """The version that sampled all its tokens."""
    accuracy: float
    """Mean over prompts of the share of correct completions (pass@1); nan if none could be graded."""
    accuracy_low: float
    accuracy_high: float
    """Upper end of the 95 % interval of `accuracy`; see `events/pass_at_k.py`."""
    num_prompts: int
    num_samples: int
    num_failed: int
    mean_length: float


class EvalFinished(EvalRow, frozen=True, kw_only=True, tag="eval_finished", eq=False):
    prompts: tuple[PromptResult, ...] = ()
    """One per prompt; the store keeps them in a table."""
    groups: tuple[tuple[Trajectory, ...], ...] = ()
    """The completions that are kept: all of `freerun eval`, some of a run's evaluation."""


class EvalSkipped(Event, frozen=True, kw_only=True, tag="eval_skipped"):
    """An evaluation that was due has no result: it was not started, or its version was lost."""

    version: int
    reason: str


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint_saved"):
    version: int
    directory: str


class WorkerDied(Event, frozen=True, kw_only=True, tag="worker_died"):
    worker: str
    reason: str
    """Exit status or silence, and the traceback if there is one."""
    is_restarted: bool


class RunFinished(Event, frozen=True, kw_only=True, tag="run_finished"):
    outcome: RunOutcome
    reason: str = ""
    version: int
    model_directory: str
    """The newest model checkpoint, ready for `transformers`; empty if none was written."""


AnyEvent = (
    RunStarted
    | Activity
    | Notice
    | PageOpened
    | CoresMoved
    | GroupFinished
    | Queues
    | StepFinished
    | SftStep
    | EngineReport
    | EngineLoaded
    | GraderReport
    | ProcessReport
    | WeightsLoaded
    | EvalFinished
    | EvalSkipped
    | CheckpointSaved
    | WorkerDied
    | RunFinished
)
Listener = Callable[[AnyEvent], None]
